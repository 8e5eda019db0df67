/** All models at a glance, and the server below them. */

import { signal } from "@preact/signals";
import type { ModelRow } from "../live";
import { address } from "../api";
import { bytes, count, latency, NONE, percent, rate } from "../format";
import { Empty, Figure, healthOf, HealthMark, Text, type Health } from "../parts/blocks";
import { Command } from "../parts/copy";
import { Spark } from "../parts/spark";
import { VirtualGrid } from "../parts/virtual_grid";
import { modelHref } from "../routes";
import { busyCores, models, modelsLeftOut, sample, server, summaryOf, totalRates } from "../state/store";
import type { Summary } from "../state/summary";

type Order = "name" | "rate" | "p99" | "errors";
const ORDERS: Record<Order, string> = { name: "Name", rate: "Requests/s", p99: "p99", errors: "Errors" };
const filter = signal("");
const state = signal<Health | "all">("all");
const order = signal<Order>("name");
const CARD_HEIGHT = 236;

export function Overview() {
    return (
        <>
            <h1 class="out-of-sight">Overview</h1>
            <ServerFigures />
            <Models />
        </>
    );
}

function ServerFigures() {
    const shown = server.value;
    const now = sample.value;
    const rates = totalRates.value;
    if (!shown || !now) return <div class="figures placeholder" aria-hidden="true" />;
    const recent = rates.slice(-5);
    const total = recent.reduce((sum, each) => sum + each, 0) / Math.max(1, recent.length);
    const rows = models.value ?? [];
    const ready = rows.filter((row) => ["ready", "part"].includes(healthOf(row).health)).length;
    return (
        <section aria-label="Server">
            <dl class="figures">
                <div class="figure main">
                    <dt>Requests</dt>
                    <dd>
                        <span class="value">{rate(total)}</span>
                        <span class="unit"> /s</span>
                    </dd>
                    <Spark values={rates} points={120} />
                </div>
                <Figure label="Models ready" value={String(ready)} unit={`of ${rows.length}`} />
                <Figure label="In flight" value={count(now.process.in_flight)} />
                <Figure
                    label="CPU"
                    value={busyCores.value === null ? NONE : busyCores.value.toFixed(busyCores.value < 10 ? 2 : 1)}
                    unit={`of ${shown.core_count} ${shown.core_count === 1 ? "core" : "cores"}`}
                />
                <Figure label="Memory" value={bytes(now.process.resident_bytes)} />
                <Figure label="Processes" value={String(shown.process_count)} />
                {now.gpus?.map((gpu) => (
                    <Figure
                        key={gpu.index}
                        label={`GPU ${gpu.index}`}
                        value={percent(gpu.utilization)}
                        note={`${bytes(gpu.used_bytes)} of ${bytes(gpu.total_bytes)}`}
                    />
                ))}
            </dl>
        </section>
    );
}

function Models() {
    const rows = models.value;
    if (!rows) return <p class="waiting">Waiting for the list of models…</p>;
    if (!rows.length) return <NoModels />;
    const counts = new Map<Health, number>();
    for (const row of rows) {
        const { health } = healthOf(row);
        counts.set(health, (counts.get(health) ?? 0) + 1);
    }
    const shown = sorted(rows.filter(isShown));
    return (
        <section aria-label="Models">
            <div class="toolbar">
                <label class="search">
                    <span class="out-of-sight">Filter by name</span>
                    <input
                        type="search"
                        placeholder="Filter models"
                        value={filter.value}
                        onInput={(event) => (filter.value = event.currentTarget.value)}
                    />
                </label>
                <label>
                    <span>State</span>
                    <select value={state.value} onChange={(event) => (state.value = event.currentTarget.value as Health | "all")}>
                        <option value="all">All ({rows.length})</option>
                        {(["ready", "part", "busy", "failed", "off"] as const).map((each) =>
                            counts.has(each) || state.value === each ? (
                                <option key={each} value={each}>
                                    {{ ready: "Ready", part: "Partly ready", busy: "Loading", failed: "Failed", off: "Not loaded" }[each]} ({counts.get(each) ?? 0})
                                </option>
                            ) : null,
                        )}
                    </select>
                </label>
                <label>
                    <span>Order</span>
                    <select value={order.value} onChange={(event) => (order.value = event.currentTarget.value as Order)}>
                        {Object.entries(ORDERS).map(([value, text]) => <option key={value} value={value}>{text}</option>)}
                    </select>
                </label>
                <p class="shown-count" role="status">
                    {shown.length === rows.length ? `${rows.length} ${rows.length === 1 ? "model" : "models"}` : `${shown.length} of ${rows.length} models`}
                </p>
            </div>
            {modelsLeftOut.value > 0 && <p class="panel-note">{modelsLeftOut.value} further models are not shown: the stream has a bound.</p>}
            {shown.length ? (
                <VirtualGrid items={shown} label="Models" itemHeight={CARD_HEIGHT} minWidth={300} keyOf={(row) => row.name} render={(row) => <Card row={row} />} />
            ) : (
                <Empty title="No model matches.">
                    <button type="button" onClick={() => ((filter.value = ""), (state.value = "all"))}>Show all models</button>
                </Empty>
            )}
        </section>
    );
}

function isShown(row: ModelRow): boolean {
    return row.name.toLowerCase().includes(filter.value.toLowerCase()) && (state.value === "all" || healthOf(row).health === state.value);
}

function sorted(rows: ModelRow[]): ModelRow[] {
    if (order.value === "name") return rows;
    void sample.value; // The order follows the figures.
    const figure: Record<Exclude<Order, "name">, (summary: Summary) => number> = {
        rate: (summary) => summary.rate,
        p99: (summary) => (summary.isRecent ? (summary.p99?.us ?? -1) : -1),
        errors: (summary) => summary.failed,
    };
    const by = figure[order.value];
    return rows
        .map((row) => ({ row, value: by(summaryOf(row.name).peek()) }))
        .sort((a, b) => b.value - a.value)
        .map((each) => each.row);
}

function Card(props: { row: ModelRow }) {
    const { row } = props;
    const now = summaryOf(row.name).value;
    const { health, reason } = healthOf(row);
    const loaded = row.versions.filter((each) => each.state === "READY").map((each) => each.version);
    return (
        <a class={`card ${health}`} href={modelHref(row.name)}>
            <header>
                <h2><Text>{row.name}</Text></h2>
                <HealthMark health={health} />
            </header>
            <p class="card-kind">
                {row.backend && <span><Text>{row.backend}</Text></span>}
                {loaded.length > 0 && <span>{loaded.length === 1 ? "version" : "versions"} {loaded.join(", ")}</span>}
                {row.rollout && <span class="tag">rollout {splitText(row.rollout.split)}</span>}
            </p>
            {health === "failed" || health === "off" ? (
                <p class="card-reason">{health === "off" ? "Serves nothing until it is loaded." : <Text>{reason}</Text>}</p>
            ) : (
                <>
                    <div class="card-rate">
                        <p>
                            <span class="value">{rate(now.rate)}</span>
                            <span class="unit"> req/s</span>
                        </p>
                        <Spark values={now.spark} />
                    </div>
                    <dl class={now.isRecent ? "facts" : "facts is-old"} title={now.isRecent ? "Last minute" : "Since the model was loaded"}>
                        <Fact label="p50" value={latency(now.p50)} />
                        <Fact label="p95" value={latency(now.p95)} />
                        <Fact label="p99" value={latency(now.p99)} />
                        <Fact label="Batch" value={now.batch === null ? NONE : now.batch.toFixed(now.batch < 10 ? 1 : 0)} />
                        <Fact label="Queue" value={count(now.pending)} tone={now.pending > 0 ? "busy" : ""} />
                        <Fact label="Errors" value={now.failedShare === null ? count(now.totalFailed) : percent(now.failedShare)} tone={now.failed ? "bad" : ""} />
                    </dl>
                </>
            )}
        </a>
    );
}

function Fact(props: { label: string; value: string; tone?: string }) {
    return (
        <div class={props.tone ?? ""}>
            <dt>{props.label}</dt>
            <dd>{props.value}</dd>
        </div>
    );
}

function splitText(split: Record<string, number>): string {
    return Object.values(split).map((share) => Math.round(share)).join("/");
}

function NoModels() {
    return (
        <Empty title="This server has no models yet.">
            <p>Put a model into the repository, or serve a file:</p>
            <Command text="naiad serve model.onnx" />
            <p>In mode <code>explicit</code>, load a model of the repository:</p>
            <Command text={`curl -X POST ${address("v2/repository/models/NAME/load")}`} />
        </Empty>
    );
}

/** Rollouts: how requests are split between two versions, and the next step. */

import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { modelPath, post, request } from "../api";
import { age, count, duration, NONE, percent, visible } from "../format";
import { Empty, NotAllowed, Panel, Text } from "../parts/blocks";
import { ask } from "../parts/dialog";
import { route, viewHref } from "../routes";
import { useLoaded } from "../state/load";
import { models, server } from "../state/store";

/** The response of `/v2/models/NAME/rollout`. */
interface Status {
    rollout: Declaration | null;
    note: string;
    age_s: number;
    record: string;
    refused: Record<string, string>;
    previous?: number | null;
    step?: number | null;
    weights_left?: number[];
    stable?: Side;
    canary?: Side;
    shadow?: Record<string, number>;
}

interface Declaration {
    stable: number;
    canary?: number;
    weight: number;
    sticky: string;
    shadow: number;
    steps?: { weights: number[]; every_s: number };
    guard?: Record<string, number>;
}

interface Side {
    version: number;
    percent: number;
    requests: number;
    errors: number;
    error_rate: number;
    p50_ms: number | null;
    p99_ms: number | null;
}

/** Grows with each change that this page makes, so that what it shows is loaded again at once. */
const changes = signal(0);
const MAX_SHOWN = 20;

export function Rollout() {
    const shown = server.value;
    const rows = models.value;
    if (!shown || !rows) return <p class="waiting">Waiting for the server…</p>;
    const allowed = shown.allowed.rollout;
    if (!allowed.allowed) return <><h1>Rollouts</h1><NotAllowed what="Rollouts are not shown." reason={allowed.reason} asksForKey={allowed.asks_for_key} /></>;
    const named = route.value.model;
    const running = rows.filter((row) => row.rollout && row.name !== named).map((row) => row.name);
    const names = (named ? [named] : []).concat(running);
    return (
        <>
            <h1>Rollouts</h1>
            <p class="lead">A rollout splits the requests of a model between the version that serves and a new one, and returns by itself if the new one is worse.</p>
            <div class="toolbar">
                <label>
                    <span>Model</span>
                    <select value={named} onChange={(event) => (location.hash = viewHref("rollout", event.currentTarget.value))}>
                        <option value="">{running.length ? "All rollouts" : "Choose a model"}</option>
                        {rows.map((row) => <option key={row.name} value={row.name}>{visible(row.name)}</option>)}
                    </select>
                </label>
            </div>
            {names.length ? (
                <div class="panels">
                    {names.slice(0, MAX_SHOWN).map((name) => (
                        <Panel key={name} title={name} wide><RolloutPanel model={name} /></Panel>
                    ))}
                </div>
            ) : (
                <Empty title="No rollout is under way."><p>Choose a model above to try a new version with a share of its requests.</p></Empty>
            )}
        </>
    );
}

/** One model's split with its figures, and the buttons that change it. */
export function RolloutPanel(props: { model: string; isReadOnly?: boolean }) {
    const loaded = useLoaded<Status>(`${modelPath(props.model)}/rollout`, 2000, changes.value).value;
    const status = loaded.value;
    if (!status) return loaded.error ? <p class="quiet-text"><Text>{loaded.error}</Text></p> : <p class="waiting">Waiting for the server…</p>;
    const { rollout } = status;
    return (
        <div class="rollout">
            {rollout ? <Split status={status} rollout={rollout} /> : <p class="quiet-text">All requests without a version go to the newest version that is ready.</p>}
            {rollout && <Facts status={status} rollout={rollout} />}
            <Refused refused={status.refused} />
            {!props.isReadOnly && <Actions model={props.model} status={status} />}
        </div>
    );
}

function Split(props: { status: Status; rollout: Declaration }) {
    const { stable, canary } = props.status;
    const sides = [["stable", stable], ["canary", canary]].filter((each): each is [string, Side] => each[1] !== undefined);
    return (
        <>
            <div class="split" role="img" aria-label={sides.map(([name, side]) => `${name}, version ${side.version}: ${percent(side.percent / 100)}`).join("; ")}>
                {sides.map(([name, side]) => <i key={name} class={name} style={{ flexGrow: Math.max(0.0001, side.percent) }} />)}
            </div>
            <div class="scroll" tabIndex={0} role="region" aria-label="Figures of the rollout">
                <table class="data">
                    <thead>
                        <tr>
                            <th scope="col">Side</th><th scope="col">Version</th><th scope="col" class="number">Share</th><th scope="col" class="number">Requests</th>
                            <th scope="col" class="number">Errors</th><th scope="col" class="number">p50</th><th scope="col" class="number">p99</th>
                        </tr>
                    </thead>
                    <tbody>
                        {sides.map(([name, side]) => (
                            <tr key={name}>
                                <th scope="row"><i class={`side ${name}`} aria-hidden="true" />{name}</th>
                                <td>{side.version}</td>
                                <td class="number">{percent(side.percent / 100)}</td>
                                <td class="number">{count(side.requests)}</td>
                                <td class="number">{side.requests ? percent(side.error_rate) : NONE}</td>
                                <td class="number">{duration(side.p50_ms === null ? null : side.p50_ms * 1000)}</td>
                                <td class="number">{duration(side.p99_ms === null ? null : side.p99_ms * 1000)}</td>
                            </tr>
                        ))}
                    </tbody>
                </table>
            </div>
        </>
    );
}

function Facts(props: { status: Status; rollout: Declaration }) {
    const { status, rollout } = props;
    const facts: [string, ComponentChildren][] = [["Last change", `${age(status.age_s * 1000)} ago${status.note ? `: ${status.note}` : ""}`]];
    if (status.weights_left?.length) facts.push(["Next steps", `${status.weights_left.map((weight) => `${weight} %`).join(", ")}${rollout.steps ? `, every ${age(rollout.steps.every_s * 1000)}` : ""}`]);
    if (rollout.guard) facts.push(["Guard", <ul class="guard">{Object.entries(rollout.guard).map(([name, value]) => <li key={name}><code>{name}</code> {value}</li>)}</ul>]);
    else if (rollout.canary !== undefined) facts.push(["Guard", "none: nothing rolls back by itself"]);
    if (rollout.sticky) facts.push(["Sticky by", <code><Text>{rollout.sticky}</Text></code>]);
    if (rollout.shadow) facts.push(["Shadow", `copies of ${rollout.shadow} %: ${Object.entries(status.shadow ?? {}).map(([name, value]) => `${count(value)} ${name}`).join(", ")}`]);
    return (
        <dl class="pairs">
            {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{typeof value === "string" ? <Text>{value}</Text> : value}</dd></div>)}
        </dl>
    );
}

function Refused(props: { refused: Record<string, string> }) {
    const rows = Object.entries(props.refused);
    if (!rows.length) return null;
    return <ul class="refused-versions">{rows.map(([version, reason]) => <li key={version}><strong>Version {version} is refused</strong>: <Text>{reason}</Text></li>)}</ul>;
}

async function change(model: string, body: Record<string, unknown>): Promise<void> {
    await post(`${modelPath(model)}/rollout`, body);
    changes.value++;
}

function Actions(props: { model: string; status: Status }) {
    const { model, status } = props;
    const rollout = status.rollout;
    if (rollout?.canary === undefined) return <Start model={model} status={status} />;
    const { canary, stable } = rollout;
    const next = status.weights_left?.[0];
    return (
        <div class="buttons actions">
            <StepForm model={model} rollout={rollout} next={next} />
            <button type="button" onClick={() => ask({
                title: `Make version ${canary} stable?`,
                text: <p>All requests of <strong><Text>{model}</Text></strong> without a version go to version {canary}. A rollback leads back to version {stable}.</p>,
                action: "Promote",
                run: async () => (await change(model, { action: "promote" }), `Version ${canary} of ${model} is stable.`),
            })}>Promote</button>
            <button type="button" class="danger" onClick={() => ask({
                title: `Roll back to version ${stable}?`,
                text: <p>All requests of <strong><Text>{model}</Text></strong> go to version {stable} with the next request. Version {canary} is refused until a command allows it again.</p>,
                action: "Roll back",
                isDangerous: true,
                run: async () => (await change(model, { action: "rollback" }), `${model} is back at version ${stable}.`),
            })}>Roll back</button>
            <End model={model} />
        </div>
    );
}

function StepForm(props: { model: string; rollout: Declaration; next: number | undefined }) {
    const { model, rollout } = props;
    const proposed = props.next ?? Math.min(100, Math.max(1, rollout.weight * 2));
    const weight = useSignal("");
    const step = (event: Event) => {
        event.preventDefault();
        const value = Number(weight.value || proposed);
        ask({
            title: `Give the canary ${value} %?`,
            text: <p>Version {rollout.canary} of <strong><Text>{model}</Text></strong> gets {value} % of the requests, now {rollout.weight} %.{rollout.steps ? " The declared steps stop." : ""}</p>,
            action: `Set ${value} %`,
            run: async () => (await change(model, { weight: value }), `Version ${rollout.canary} of ${model} gets ${value} %.`),
        });
        weight.value = "";
    };
    return (
        <form class="inline" onSubmit={step}>
            <label><span>Weight in %</span><input type="number" min="0" max="100" step="any" placeholder={String(proposed)} value={weight.value} onInput={(event) => (weight.value = event.currentTarget.value)} /></label>
            <button type="submit" class="primary">Set weight</button>
        </form>
    );
}

function End(props: { model: string }) {
    return (
        <button type="button" class="quiet" onClick={() => ask({
            title: "End the rollout?",
            text: <p>Requests of <strong><Text>{props.model}</Text></strong> without a version go to the newest version again that is ready and not refused.</p>,
            action: "End it",
            run: async () => {
                await request(`${modelPath(props.model)}/rollout`, { method: "DELETE" });
                changes.value++;
                return `The rollout of ${props.model} has ended.`;
            },
        })}>End</button>
    );
}

function Start(props: { model: string; status: Status }) {
    const { model, status } = props;
    const version = useSignal("");
    const weight = useSignal("10");
    const errors = useSignal("1");
    const p99 = useSignal("");
    if (server.value?.model_control_mode !== "explicit" && !status.rollout) {
        return (
            <NotAllowed what="No rollout can start from here." reason="The server loads what its files declare. Declare one in rollout.toml (stable = 1 is enough), or start the server with --model-control-mode=explicit." />
        );
    }
    const start = (event: Event) => {
        event.preventDefault();
        const canary = Number(version.value);
        const guard: Record<string, number> = {};
        if (errors.value) guard.max_error_rate = Number(errors.value) / 100;
        if (p99.value) guard.max_p99_ms = Number(p99.value);
        ask({
            title: `Try version ${canary}?`,
            text: <p>Version {canary} of <strong><Text>{model}</Text></strong> is loaded if it is not, and gets {weight.value} % of the requests without a version.</p>,
            action: "Start",
            run: async () => {
                await change(model, { canary, weight: Number(weight.value), ...(Object.keys(guard).length ? { guard } : {}) });
                return `Version ${canary} of ${model} gets ${weight.value} % of the requests.`;
            },
        });
    };
    return (
        <form class="start" onSubmit={start}>
            <label><span>New version</span><input required type="number" min="1" step="1" value={version.value} onInput={(event) => (version.value = event.currentTarget.value)} /></label>
            <label><span>Weight in %</span><input required type="number" min="0" max="100" step="any" value={weight.value} onInput={(event) => (weight.value = event.currentTarget.value)} /></label>
            <label><span>Roll back above errors in %</span><input type="number" min="0" max="100" step="any" value={errors.value} onInput={(event) => (errors.value = event.currentTarget.value)} /></label>
            <label><span>Roll back above p99 in ms</span><input type="number" min="0" step="any" placeholder="no limit" value={p99.value} onInput={(event) => (p99.value = event.currentTarget.value)} /></label>
            <button type="submit" class="primary">Start</button>
            {status.rollout && <End model={model} />}
        </form>
    );
}


/** What a model does now: figures, where the time of requests goes, single requests, batches, instances. */

import { address, modelPath } from "../../api";
import { count, duration, latency, NONE, percent, rate } from "../../format";
import { Empty, Figure, Panel } from "../../parts/blocks";
import { StackedChart, type Series } from "../../parts/chart";
import { Command } from "../../parts/copy";
import { historiesOf, sampleTimes, summaryOf } from "../../state/store";
import type { Point } from "../../state/version_history";
import { Batches } from "./batches";
import { BatchSizes, Latencies } from "./distributions";
import { Instances } from "./instances";
import { Waterfall } from "./waterfall";

export function Now(props: { model: string }) {
    const { model } = props;
    const now = summaryOf(model).value;
    if (!now.total && !now.pending && !now.executing) return <NothingYet model={model} />;
    return (
        <>
            <dl class={now.isRecent ? "figures" : "figures is-old"}>
                <Figure label="Requests" value={rate(now.rate)} unit="/s" />
                <Figure label="p50" value={latency(now.p50)} />
                <Figure label="p95" value={latency(now.p95)} />
                <Figure label="p99" value={latency(now.p99)} />
                <Figure label="Mean batch" value={now.batch === null ? NONE : now.batch.toFixed(1)} />
                <Figure label="In the queue" value={count(now.pending)} />
                <Figure label="Executing" value={count(now.executing)} />
                <Figure
                    label="Errors"
                    value={now.failedShare === null ? count(now.totalFailed) : percent(now.failedShare)}
                    {...(now.failed ? { tone: "bad" as const } : {})}
                />
            </dl>
            <p class="figures-note">{now.isRecent ? "Percentiles, batch and errors are of the last minute." : "No requests in the last minute: figures are since the model was loaded."}</p>
            <div class="panels">
                <Times model={model} />
                <Rates model={model} />
                <Latencies model={model} />
                <BatchSizes model={model} />
                <Waterfall model={model} />
                <Batches model={model} />
                <Instances />
            </div>
        </>
    );
}

function NothingYet(props: { model: string }) {
    return (
        <>
            <Empty title="No requests yet.">
                <p>Send one from the <a href={`#/models/${encodeURIComponent(props.model)}/try`}>Try it</a> tab, or let naiad make load with suitable inputs:</p>
                <Command text={`naiad perf -m ${shellWord(props.model)} -u ${address("").replace(/^https?:\/\//, "").replace(/\/$/, "")}`} />
                <p>What the model takes and returns:</p>
                <Command text={`curl ${address(modelPath(props.model))}`} />
            </Empty>
            <div class="panels">
                <Batches model={props.model} />
                <Instances />
            </div>
        </>
    );
}

function shellWord(text: string): string {
    return /^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The points of all versions, one for each sample; null where no version served anything. */
function pointsByTime(model: string): (Point[] | null)[] {
    const found = new Map<number, Point[]>();
    for (const history of historiesOf(model).values()) {
        for (const point of history.points) found.set(point.time_ms, [...(found.get(point.time_ms) ?? []), point]);
    }
    return sampleTimes.map((time) => found.get(time) ?? null);
}

function total(points: Point[] | null, value: (point: Point) => number): number {
    return points ? points.reduce((sum, point) => sum + value(point), 0) : 0;
}

function Times(props: { model: string }) {
    void summaryOf(props.model).value;
    const points = pointsByTime(props.model);
    const mean = (value: (point: Point) => number) =>
        points.map((each) => {
            const requests = total(each, (point) => point.success);
            return requests ? Math.max(0, total(each, value)) / requests / 1000 : null;
        });
    const series: Series[] = [
        { label: "Queue", color: "--part-queue", values: mean((point) => point.queue_ns) },
        { label: "Input", color: "--part-input", values: mean((point) => point.compute_input_ns) },
        { label: "Compute", color: "--part-compute", values: mean((point) => point.compute_ns) },
        { label: "Output", color: "--part-output", values: mean((point) => point.compute_output_ns) },
        { label: "Rest", color: "--part-response", values: mean(rest_ns) },
    ];
    return (
        <Panel title="Where the time goes" note="Mean time of a request, by part.">
            <StackedChart times_ms={sampleTimes} series={series} format={(value) => duration(value)} label="Mean time of a request by part" />
        </Panel>
    );
}

/** What is in none of the parts, such as the wait of an ensemble for its steps. */
function rest_ns(point: Point): number {
    return point.request_ns - point.queue_ns - point.compute_input_ns - point.compute_ns - point.compute_output_ns;
}

function Rates(props: { model: string }) {
    void summaryOf(props.model).value;
    const points = pointsByTime(props.model);
    const perSecond = (value: (point: Point) => number) => points.map((each) => total(each, (point) => value(point) / point.seconds));
    const series: Series[] = [
        { label: "Failed", color: "--bad", values: perSecond((point) => point.failure) },
        { label: "Succeeded", color: "--part-output", values: perSecond((point) => point.success) },
    ];
    return (
        <Panel title="Requests" note="Requests per second.">
            <StackedChart times_ms={sampleTimes} series={series} format={(value) => `${rate(value)}/s`} label="Requests per second" />
        </Panel>
    );
}

/** How latencies and batch sizes are spread. */

import { count, duration, percent } from "../../format";
import { Panel } from "../../parts/blocks";
import { sum } from "../../state/histogram";
import { historiesOf, summaryOf } from "../../state/store";

interface Bar {
    label: string;
    value: number;
}

export function Latencies(props: { model: string }) {
    const { isRecent } = summaryOf(props.model).value;
    const counts: number[] = [];
    let bounds_us: readonly number[] = [];
    for (const { last, window } of historiesOf(props.model).values()) {
        if (!last) continue;
        if (last.bounds_us.length > bounds_us.length) bounds_us = last.bounds_us;
        (isRecent ? window : last.latency_counts).forEach((each, i) => (counts[i] = (counts[i] ?? 0) + each));
    }
    const bars = counts.map((value, i) => {
        const upper = bounds_us[i];
        return { label: upper === undefined ? `over ${duration(bounds_us[i - 1])}` : `≤ ${duration(upper)}`, value };
    });
    return (
        <Panel title="Latency" note={isRecent ? "Successful requests of the last minute." : "Successful requests since the model was loaded."}>
            <Bars bars={trimmed(bars)} what="requests" />
        </Panel>
    );
}

export function BatchSizes(props: { model: string }) {
    void summaryOf(props.model).value;
    const sizes = new Map<number, number>();
    for (const { last } of historiesOf(props.model).values()) {
        for (const [size, times] of Object.entries(last?.batch_sizes ?? {})) sizes.set(Number(size), (sizes.get(Number(size)) ?? 0) + times);
    }
    const bars = [...sizes].sort(([a], [b]) => a - b).map(([size, value]) => ({ label: String(size), value }));
    return (
        <Panel title="Batch sizes" note="Executions since the model was loaded, by rows.">
            {bars.length ? <Bars bars={grouped(bars)} what="executions" /> : <p class="quiet-text">No executions yet.</p>}
        </Panel>
    );
}

/** Without the empty ends, but with one empty bar on each side. */
function trimmed(bars: Bar[]): Bar[] {
    const first = bars.findIndex((bar) => bar.value > 0);
    const last = bars.findLastIndex((bar) => bar.value > 0);
    return first < 0 ? [] : bars.slice(Math.max(0, first - 1), last + 2);
}

/** At most 16 bars: neighbours share one. */
function grouped(bars: Bar[]): Bar[] {
    const step = Math.ceil(bars.length / 16);
    if (step === 1) return bars;
    const found: Bar[] = [];
    for (let i = 0; i < bars.length; i += step) {
        const part = bars.slice(i, i + step);
        const first = part[0]?.label ?? "";
        const last = part[part.length - 1]?.label ?? "";
        found.push({ label: first === last ? first : `${first}–${last}`, value: sum(part.map((bar) => bar.value)) });
    }
    return found;
}

function Bars(props: { bars: readonly Bar[]; what: string }) {
    const values = props.bars.map((bar) => bar.value);
    const top = Math.max(1, ...values);
    const total = Math.max(1, sum(values));
    return (
        <ul class="bars">
            {props.bars.map((bar) => (
                <li key={bar.label}>
                    <span class="bar-label">{bar.label}</span>
                    <span class="bar-track" aria-hidden="true"><i style={{ width: `${(bar.value / top) * 100}%` }} /></span>
                    <span class="bar-value">{count(bar.value)}<span class="out-of-sight"> {props.what}</span></span>
                    <span class="bar-share">{bar.value ? percent(bar.value / total) : ""}</span>
                </li>
            ))}
        </ul>
    );
}

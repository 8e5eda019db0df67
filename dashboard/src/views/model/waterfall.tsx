/** Single requests, each as a line of its parts in order. */

import { useSignal } from "@preact/signals";
import type { RequestTimes } from "../../live";
import { clock, duration } from "../../format";
import { Panel, Text } from "../../parts/blocks";
import { Copy } from "../../parts/copy";
import { detail } from "../../state/store";

const PARTS = [
    ["queue_us", "Queue", "--part-queue"],
    ["input_us", "Input", "--part-input"],
    ["compute_us", "Compute", "--part-compute"],
    ["output_us", "Output", "--part-output"],
    ["response_us", "Response", "--part-response"],
] as const;

export function Waterfall(props: { model: string }) {
    const kind = useSignal<"slowest" | "recent">("slowest");
    const held = useSignal<readonly RequestTimes[] | null>(null);
    const seen = detail.value?.model === props.model ? detail.value : null;
    const rows = held.value ?? seen?.[kind.value] ?? [];
    const longest = Math.max(1, ...rows.map(total_us));
    const choose = (next: "slowest" | "recent") => {
        kind.value = next;
        held.value = null;
    };
    const aside = (
        <div class="choice" role="group" aria-label="Which requests">
            <button type="button" aria-pressed={kind.value === "slowest"} onClick={() => choose("slowest")}>Slowest</button>
            <button type="button" aria-pressed={kind.value === "recent"} onClick={() => choose("recent")}>Last</button>
            <button type="button" aria-pressed={held.value !== null} onClick={() => (held.value = held.value ? null : rows)}>Hold</button>
        </div>
    );
    return (
        <Panel title="Single requests" wide aside={aside} note={kind.value === "slowest" ? "The slowest since this page was opened." : "The last ones."}>
            {rows.length ? (
                <>
                    <p class="legend" aria-hidden="true">
                        {PARTS.map(([, label, color]) => <span key={label}><i style={{ background: `var(${color})` }} />{label}</span>)}
                    </p>
                    <ol class="waterfall">{rows.map((row) => <Row key={`${row.id} ${row.time_ms}`} row={row} longest={longest} />)}</ol>
                </>
            ) : (
                <p class="quiet-text">No request since this page was opened. The server keeps single requests only while a page shows them.</p>
            )}
        </Panel>
    );
}

function Row(props: { row: RequestTimes; longest: number }) {
    const { row } = props;
    const parts = PARTS.map(([key, label, color]) => ({ label, color, us: row[key] }));
    const text = parts.filter((part) => part.us > 0).map((part) => `${part.label} ${duration(part.us)}`).join(", ");
    return (
        <li class={row.outcome === "success" ? "" : "bad"}>
            <span class="when">{clock(row.time_ms)}</span>
            <span class="track" title={text}>
                {parts.map((part) => <i key={part.label} style={{ width: `${(part.us / props.longest) * 100}%`, background: `var(${part.color})` }} />)}
                <span class="out-of-sight">{text}</span>
            </span>
            <span class="time">{duration(total_us(row))}</span>
            <span class="rows">{row.batch_size > 1 ? `batch ${row.batch_size}` : ""}{row.outcome === "success" ? "" : <b> <Text>{row.outcome}</Text></b>}</span>
            <span class="id">
                {row.id ? <><code><Text>{row.id}</Text></code><Copy text={row.id} label={`Copy the request id ${row.id}`} /></> : <span class="quiet-text">no id</span>}
            </span>
        </li>
    );
}

function total_us(row: RequestTimes): number {
    return row.queue_us + row.input_us + row.compute_us + row.output_us + row.response_us;
}

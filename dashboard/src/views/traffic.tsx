/** Requests that failed, by kind and one by one, and the log. */

import { useSignal, type Signal } from "@preact/signals";
import type { LogEvent } from "../live";
import { age, clock, count } from "../format";
import { Empty, NotAllowed, Panel, Text } from "../parts/blocks";
import { Copy } from "../parts/copy";
import { modelHref } from "../routes";
import { failures, failuresLeftOut, logLeftOut, logLines, sample, server, type Failure, type LogLine } from "../state/store";

const LEVELS: readonly LogEvent["lines"][number]["level"][] = ["ERROR", "WARNING", "INFO", "VERBOSE"];
const SHOWN_FAILURES = 100;
const SHOWN_LINES = 400;

export function Traffic() {
    return (
        <>
            <h1>Traffic</h1>
            <div class="panels">
                <Failures />
                <Log />
            </div>
        </>
    );
}

function Failures() {
    const chosen = useSignal("");
    const seen = failures.value;
    const kinds = new Map<string, Failure[]>();
    for (const each of seen) {
        const kind = `${each.model} ${each.code}`;
        kinds.set(kind, [...(kinds.get(kind) ?? []), each]);
    }
    const rows = (kinds.get(chosen.value) ?? seen).slice(0, SHOWN_FAILURES);
    if (!seen.length) {
        return (
            <Panel title="Errors" wide>
                <Empty title="No failed request since this page was opened.">
                    <p>Failures appear here at once, with their code, their message and the id of the request, which is also in the log and in the response's header <code>triton-request-id</code>.</p>
                </Empty>
            </Panel>
        );
    }
    return (
        <Panel title="Errors" wide note={`${count(seen.length + failuresLeftOut.value)} since this page was opened${failuresLeftOut.value ? `; ${count(failuresLeftOut.value)} of them are not listed` : ""}.`}>
            <ul class="kinds" aria-label="Errors by model and code">
                {[...kinds].sort(([, a], [, b]) => b.length - a.length).map(([kind, found]) => (
                    <li key={kind}>
                        <button type="button" aria-pressed={chosen.value === kind} onClick={() => (chosen.value = chosen.value === kind ? "" : kind)}>
                            <b>{count(found.length)}</b> <code>{found[0]?.code}</code> <span><Text>{found[0]?.model ?? ""}</Text></span>
                            <small><Text>{(found[0]?.message ?? "").slice(0, 140)}</Text></small>
                        </button>
                    </li>
                ))}
            </ul>
            <div class="scroll tall" tabIndex={0} role="region" aria-label="Failed requests">
                <table class="data failures">
                    <thead><tr><th scope="col">Time</th><th scope="col">Code</th><th scope="col">Model</th><th scope="col">Message</th><th scope="col">Request id</th></tr></thead>
                    <tbody>
                        {rows.map((each, i) => (
                            <tr key={`${each.time_ms} ${each.id} ${i}`}>
                                <td>{clock(each.time_ms)}</td>
                                <td><code><Text>{each.code}</Text></code></td>
                                <td>{each.model ? <a href={modelHref(each.model)}><Text>{each.model}</Text></a> : "–"}{each.version && <span class="quiet-text"> {each.version}</span>}</td>
                                <td class="message"><Text>{each.message}</Text></td>
                                <td class="id">{each.id ? <><code><Text>{each.id}</Text></code><Copy text={each.id} label={`Copy the request id ${each.id}`} /></> : <span class="quiet-text">none</span>}</td>
                            </tr>
                        ))}
                    </tbody>
                </table>
            </div>
        </Panel>
    );
}

function Log() {
    const held = useSignal<readonly LogLine[] | null>(null);
    const text = useSignal("");
    const level = useSignal<(typeof LEVELS)[number]>("VERBOSE");
    const allowed = server.value?.allowed.logging;
    if (allowed && !allowed.allowed) {
        return <Panel title="Log" wide><NotAllowed what="The log is not shown." reason={allowed.reason} asksForKey={allowed.asks_for_key} /></Panel>;
    }
    const wanted = text.value.toLowerCase();
    const most = LEVELS.indexOf(level.value);
    const all = held.value ?? logLines.value;
    const lines = all.filter((line) => LEVELS.indexOf(line.level) <= most && line.text.toLowerCase().includes(wanted)).slice(-SHOWN_LINES).toReversed();
    return (
        <Panel title="Log" wide note={logLeftOut.value ? `${count(logLeftOut.value)} lines came too fast and are not shown.` : "Newest first, from the moment this page was opened."} aside={<LogTools text={text} level={level} held={held} />}>
            {lines.length ? (
                <ol class="log" tabIndex={0} aria-label="Log lines">
                    {lines.map((line) => (
                        <li key={line.id} class={line.level.toLowerCase()}>
                            <time>{clock(line.time_ms)}</time>
                            <span class="level">{line.level.toLowerCase()}</span>
                            <span class="line"><Text>{line.text}</Text></span>
                        </li>
                    ))}
                </ol>
            ) : (
                <p class="quiet-text">{all.length ? "No line matches." : `No line yet${sample.value && server.value ? `; the server runs for ${age(sample.value.time_ms - server.value.started_ms)}` : ""}.`}</p>
            )}
        </Panel>
    );
}

function LogTools(props: { text: Signal<string>; level: Signal<(typeof LEVELS)[number]>; held: Signal<readonly LogLine[] | null> }) {
    const { text, level, held } = props;
    return (
        <div class="tools">
            <label><span class="out-of-sight">Filter the log</span><input type="search" placeholder="Filter" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} /></label>
            <label>
                <span class="out-of-sight">Level</span>
                <select value={level.value} onChange={(event) => (level.value = event.currentTarget.value as (typeof LEVELS)[number])}>
                    <option value="ERROR">Errors</option>
                    <option value="WARNING">and warnings</option>
                    <option value="INFO">and information</option>
                    <option value="VERBOSE">all lines</option>
                </select>
            </label>
            <button type="button" class="quiet small" aria-pressed={held.value !== null} onClick={() => (held.value = held.value ? null : logLines.value)}>{held.value ? "Go on" : "Hold"}</button>
        </div>
    );
}

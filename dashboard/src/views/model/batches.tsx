/** How requests are scheduled, and why batches were released. */

import { modelPath } from "../../api";
import { count, duration, percent } from "../../format";
import { Panel, Text } from "../../parts/blocks";
import { useLoaded } from "../../state/load";
import { detail, server } from "../../state/store";

/** The parts of `GET .../explain` that are shown. */
interface Explanation {
    scheduler: string;
    rules: string[];
    hints: string[];
    batches: number;
    release_reasons: Record<string, number>;
}

const REASONS: Record<string, string> = {
    full: "it could not grow any more",
    preferred: "it reached a preferred size",
    delay: "its oldest request had waited for the maximum delay",
    shape: "the next request had another shape",
    strategy: "the batching strategy rejected the next request",
    priority: "an older request of a lower level waits",
    idle: "an instance was free and no other request waited",
};

export function Batches(props: { model: string }) {
    const allowed = server.value?.allowed.statistics.allowed !== false;
    const loaded = useLoaded<Explanation>(allowed ? `${modelPath(props.model)}/explain` : "", 5000).value;
    const shown = loaded.value;
    const reasons = Object.entries(shown?.release_reasons ?? {}).filter(([, times]) => times > 0).sort(([, a], [, b]) => b - a);
    const total = Math.max(1, reasons.reduce((sum, [, times]) => sum + times, 0));
    const last = detail.value?.model === props.model ? detail.value.batches : [];
    return (
        <Panel title="Scheduling" wide note={shown ? `${shown.scheduler} scheduler` : undefined}>
            {loaded.error && !shown && <p class="quiet-text"><Text>{loaded.error}</Text></p>}
            {shown && (
                <div class="columns">
                    <div>
                        <h3>What happens to a request</h3>
                        <ol class="rules">{shown.rules.map((rule) => <li key={rule}><Text>{rule}</Text></li>)}</ol>
                        {shown.hints.map((hint) => <p key={hint} class="hint-mark"><Text>{hint}</Text></p>)}
                    </div>
                    <div>
                        <h3>Why batches were sent</h3>
                        {reasons.length ? (
                            <dl class="reasons">
                                {reasons.map(([reason, times]) => (
                                    <div key={reason}>
                                        <dt><b>{reason}</b> {REASONS[reason] ?? ""}</dt>
                                        <dd>{percent(times / total)} <span>{count(times)}</span></dd>
                                    </div>
                                ))}
                            </dl>
                        ) : (
                            <p class="quiet-text">No batches yet.</p>
                        )}
                    </div>
                </div>
            )}
            {last.length > 0 && (
                <div class="scroll" tabIndex={0} role="region" aria-label="The last batches">
                    <table class="data">
                        <caption>The last batches</caption>
                        <thead><tr><th scope="col">Why</th><th scope="col" class="number">Rows</th><th scope="col" class="number">Requests</th><th scope="col" class="number">Waited</th><th scope="col" class="number">Executed</th></tr></thead>
                        <tbody>
                            {last.slice(0, 8).map((batch, i) => (
                                <tr key={`${batch.time_ms} ${i}`}>
                                    <td>{batch.reason}</td>
                                    <td class="number">{batch.size}</td>
                                    <td class="number">{batch.request_count}</td>
                                    <td class="number">{duration(batch.waited_us)}</td>
                                    <td class="number">{duration(batch.compute_us)}</td>
                                </tr>
                            ))}
                        </tbody>
                    </table>
                </div>
            )}
        </Panel>
    );
}

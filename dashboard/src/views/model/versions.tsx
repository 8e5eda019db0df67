/** The versions of a model side by side, and how a rollout splits requests between them. */

import { count, duration, latency, percent, rate } from "../../format";
import { NotAllowed, Panel, Text } from "../../parts/blocks";
import { viewHref } from "../../routes";
import { percentile } from "../../state/histogram";
import { historiesOf, rowOf, sample, server, summaryOf } from "../../state/store";
import { RolloutPanel } from "../rollout";

export function Versions(props: { model: string }) {
    void summaryOf(props.model).value;
    const row = rowOf(props.model);
    const allowed = server.value?.allowed.rollout;
    const now_ms = sample.value?.time_ms ?? 0;
    const histories = historiesOf(props.model);
    return (
        <div class="panels">
            <Panel title="Versions" wide>
                <div class="scroll" tabIndex={0} role="region" aria-label="Versions">
                    <table class="data">
                        <thead>
                            <tr>
                                <th scope="col">Version</th><th scope="col">State</th><th scope="col" class="number">Requests/s</th>
                                <th scope="col" class="number">p50</th><th scope="col" class="number">p99</th><th scope="col" class="number">Mean</th>
                                <th scope="col" class="number">Requests</th><th scope="col" class="number">Errors</th>
                            </tr>
                        </thead>
                        <tbody>
                            {row?.versions.map((each) => {
                                const history = histories.get(each.version);
                                const last = history?.last;
                                const counts = history?.isActive ? history.window : (last?.latency_counts ?? []);
                                const bounds = last?.bounds_us ?? [];
                                const total = last ? last.success + last.failure : 0;
                                return (
                                    <tr key={each.version}>
                                        <th scope="row">{each.version}</th>
                                        <td>{each.state.toLowerCase()}{each.reason && <span class="quiet-text"> <Text>{each.reason}</Text></span>}</td>
                                        <td class="number">{history ? rate(history.rate("success", now_ms, 5) + history.rate("failure", now_ms, 5)) : 0}</td>
                                        <td class="number">{latency(percentile(counts, bounds, 0.5))}</td>
                                        <td class="number">{latency(percentile(counts, bounds, 0.99))}</td>
                                        <td class="number">{duration(last?.success ? last.request_ns / last.success / 1000 : null)}</td>
                                        <td class="number">{count(total)}</td>
                                        <td class="number">{total ? percent((last?.failure ?? 0) / total) : "–"}</td>
                                    </tr>
                                );
                            })}
                        </tbody>
                    </table>
                </div>
            </Panel>
            <Panel title="Rollout" wide aside={<a href={viewHref("rollout", props.model)}>Change</a>}>
                {allowed && !allowed.allowed ? <NotAllowed what="Not shown." reason={allowed.reason} asksForKey={allowed.asks_for_key} /> : <RolloutPanel model={props.model} isReadOnly />}
            </Panel>
        </div>
    );
}

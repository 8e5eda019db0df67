/** A small load from this page: the form's request again and again for ten seconds at most. */

import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Text } from "../parts/blocks";
import type { FormState } from "./form/form_state";
import { InputProblem } from "./tensor/elements";
import { encodeCall } from "./wire/infer_body";
import { LOAD_SECONDS, type LoadResult, runLoad } from "./wire/load";
import { inferEncoded } from "./wire/requests";
import { shownMs } from "./wire/timing";

export function LoadPanel(props: { form: FormState; version: string | undefined }) {
    const { form } = props;
    const concurrency = useSignal(1);
    const running = useSignal<AbortController | undefined>(undefined);
    const result = useSignal<LoadResult | undefined>(undefined);
    const problem = useSignal("");
    useEffect(() => () => running.peek()?.abort(), []);
    const start = async () => {
        problem.value = "";
        const stop = new AbortController();
        try {
            const encoded = encodeCall(form.call(""));
            running.value = stop;
            result.value = await runLoad(
                (signal) => inferEncoded(form.model.name, props.version, encoded, signal), concurrency.value, stop.signal, (made) => (result.value = made),
            );
        } catch (error) {
            if (!(error instanceof InputProblem)) throw error;
            problem.value = error.message;
        } finally {
            running.value = undefined;
        }
    };
    return (
        <details class="pg-panel">
            <summary><h2>Small load</h2></summary>
            {form.model.isSequence ? (
                <p class="quiet-text">Requests of a sequence follow each other: use <code>naiad perf</code> for a load of sequences.</p>
            ) : (
                <>
                    <div class="pg-row">
                        <label class="pg-small">
                            Requests at a time
                            <select value={concurrency.value} disabled={Boolean(running.value)} onChange={(event) => (concurrency.value = Number(event.currentTarget.value))}>
                                <option value={1}>1, one after another</option>
                                <option value={4}>4</option>
                            </select>
                        </label>
                        {running.value ? (
                            <button type="button" class="danger" onClick={() => running.value?.abort()}>Stop</button>
                        ) : (
                            <button type="button" onClick={() => void start()}>Measure for {LOAD_SECONDS} s</button>
                        )}
                    </div>
                    {problem.value && <p class="problem" role="alert">{problem.value}</p>}
                    {result.value && <Figures result={result.value} />}
                    <p class="quiet-text">The browser and its connection are part of these figures. <code>naiad perf</code> measures the server.</p>
                </>
            )}
        </details>
    );
}

function Figures(props: { result: LoadResult }) {
    const { perSecond, p50Ms, p99Ms, count, errorCount, firstError, seconds } = props.result;
    const facts: [string, string][] = [
        ["requests/s", perSecond.toFixed(perSecond < 100 ? 1 : 0)],
        ["p50", Number.isNaN(p50Ms) ? "–" : shownMs(p50Ms)],
        ["p99", Number.isNaN(p99Ms) ? "–" : shownMs(p99Ms)],
        ["requests", `${count} in ${seconds.toFixed(1)} s`],
    ];
    return (
        <>
            <dl class="pg-facts" aria-live="polite">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
            {errorCount > 0 && <p class="problem">{errorCount} failed: <Text>{firstError}</Text></p>}
        </>
    );
}

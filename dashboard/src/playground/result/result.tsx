/** What came back: the time, the outputs, the responses of a stream as they come, or the error. */

import { useEffect, useRef } from "preact/hooks";
import { Text } from "../../parts/blocks";
import { Copy } from "../../parts/copy";
import { bytes } from "../../format";
import { splitTime, stepParts, shownMs, type TimePart } from "../wire/timing";
import type { ClassLabels } from "../class_labels";
import type { InferCall } from "../wire/infer_body";
import type { Answer } from "../wire/infer_answer";
import type { Pixels } from "../picture/resize";
import { shownElement } from "../tensor/elements";
import { OutputCard } from "./output_card";
import { type Failure, MAX_KEPT, type RunState } from "./run_state";
import type { ViewKind } from "./views";

export function Result(props: { run: RunState; labels: ClassLabels }) {
    const chosen = useRef(new Map<string, ViewKind>()).current;
    const run = props.run.run.value;
    const section = useRef<HTMLElement>(null);
    useEffect(() => {
        // Where the response is below the form, it comes into sight.
        const place = section.current?.getBoundingClientRect();
        if (run.phase !== "idle" && place && place.top > innerHeight * 0.8) section.current?.scrollIntoView({ block: "start", behavior: isCalm() ? "auto" : "smooth" });
    }, [run.phase]);
    return (
        <section class="pg-result" aria-label="Response" ref={section}>
            <div class="pg-head">
                <h2>Response</h2>
                <p class="pg-status" role="status">{statusOf(props.run)}</p>
            </div>
            {run.phase === "idle" && <p class="pg-nothing">Send the request: the answer is shown here.</p>}
            {run.phase === "running" && !run.call.isStream && <p class="pg-nothing">The model works…</p>}
            {run.phase === "failed" && <FailureView failure={run.failure} />}
            {run.phase === "answered" && (
                <>
                    <Times totalMs={run.exchange.totalMs} timing={run.exchange.timing} />
                    <RequestLine id={run.exchange.requestId} answer={run.exchange.answer} size={run.exchange.bytes} />
                    <Outputs answer={run.exchange.answer} call={run.call} picture={run.picture} chosen={chosen} labels={props.labels} />
                </>
            )}
            <Streamed run={props.run} labels={props.labels} />
        </section>
    );
}

/** Whether the user wants less motion. */
function isCalm(): boolean {
    return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function statusOf(state: RunState): string {
    const run = state.run.value;
    switch (run.phase) {
        case "idle":
            return "";
        case "running":
            return run.call.isStream ? `${state.streamedCount.value} responses so far…` : "Waiting…";
        case "answered":
            return `Answered in ${shownMs(run.exchange.totalMs)}`;
        case "streamed":
            return `${state.streamedCount.value} responses in ${shownMs(run.totalMs)}${run.isCancelled ? ", cancelled" : ""}`;
        case "failed":
            return run.failure.status ? `Refused: HTTP ${run.failure.status}` : "Not sent";
    }
}

function FailureView(props: { failure: Failure }) {
    const { message, requestId, timing } = props.failure;
    return (
        <>
            <p class="problem" role="alert"><Text>{message}</Text></p>
            {requestId && <p class="pg-id">request id <code><Text>{requestId}</Text></code> <Copy text={requestId} label="Copy the request id" /></p>}
            {timing && <p class="quiet-text">{splitTime(0, timing).filter((part) => part.ms > 0).map((part) => `${part.meaning} ${shownMs(part.ms)}`).join(", ")}</p>}
        </>
    );
}

/** Ensembles have them in each response, as Triton's do; without a sequence they say nothing. */
const SEQUENCE = new Set(["sequence_id", "sequence_start", "sequence_end"]);

function RequestLine(props: { id: string; answer: Answer; size: number }) {
    const { answer } = props;
    const parameters = Object.entries(answer.parameters).filter(([name, value]) => !(SEQUENCE.has(name) && !value));
    return (
        <p class="pg-id">
            version <Text>{answer.version}</Text> · {bytes(props.size)} · request id <code><Text>{props.id}</Text></code> <Copy text={props.id} label="Copy the request id" />
            {parameters.length > 0 && <> · <Text>{parameters.map(([name, value]) => `${name}: ${String(value)}`).join(", ").slice(0, 500)}</Text></>}
        </p>
    );
}

const COLORS: Record<string, string> = {
    parse: "input", gather: "input", queue: "queue", hold: "queue", cache: "output", compute: "compute",
    scatter: "output", encode: "output", network: "response", request: "response",
};

/** The parts of the time as a bar. */
function Times(props: { totalMs: number; timing: string | null }) {
    const parts = splitTime(props.totalMs, props.timing).filter((part) => part.ms > 0);
    const steps = stepParts(props.timing);
    return (
        <div class="pg-times">
            <TimeBar parts={parts} />
            <ul>
                {parts.filter((part) => part.ms >= 0.005).map((part) => (
                    <li key={part.name}><i class={`pg-part-${COLORS[part.name] ?? "output"}`} />{part.meaning} <b>{shownMs(part.ms)}</b></li>
                ))}
            </ul>
            {steps.length > 0 && <p class="quiet-text">Steps: <Text>{steps.map((step) => `${step.name} ${shownMs(step.ms)}`).join(", ")}</Text></p>}
        </div>
    );
}

function TimeBar(props: { parts: TimePart[] }) {
    const total = props.parts.reduce((sum, part) => sum + part.ms, 0) || 1;
    let at = 0;
    return (
        <svg class="pg-time-bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="Parts of the time of this request">
            {props.parts.map((part) => {
                const width = (part.ms / total) * 1000;
                const bar = <rect key={part.name} class={`pg-part-${COLORS[part.name] ?? "output"}`} x={at} width={width} height={10}><title>{`${part.meaning}: ${shownMs(part.ms)}`}</title></rect>;
                at += width;
                return bar;
            })}
        </svg>
    );
}

function Outputs(props: { answer: Answer; call: InferCall; picture: Pixels | undefined; chosen: Map<string, ViewKind>; labels: ClassLabels }) {
    const { tensors } = props.answer;
    return (
        <>
            {tensors.map((tensor) => (
                <OutputCard
                    key={tensor.name} tensor={tensor} tensors={tensors} picture={props.picture} chosen={props.chosen} labels={props.labels}
                    isClassified={props.call.outputs.some((output) => output.name === tensor.name && output.classCount)}
                />
            ))}
            {!tensors.length && <p class="quiet-text">The response has no outputs.</p>}
        </>
    );
}

function Streamed(props: { run: RunState; labels: ClassLabels }) {
    const { run } = props;
    const answers = run.streamed.value;
    const chosen = useRef(new Map<string, ViewKind>()).current;
    if (!answers.length) return null;
    const joined = joinedText(answers.map(({ answer }) => answer));
    return (
        <>
            {joined !== undefined && <section class="pg-output" aria-label="Text of all responses"><h3>Text so far</h3><p class="pg-answer"><Text>{joined}</Text></p></section>}
            {run.streamedCount.value > MAX_KEPT && <p class="quiet-text">The last {MAX_KEPT} of {run.streamedCount.value} responses.</p>}
            <ol class="pg-stream">
                {answers.toReversed().map(({ number, atMs, answer }) => (
                    <li key={number}>
                        <p class="pg-line"><span>{number}</span><span>{shownMs(atMs)}</span><span><Text>{lineOf(answer) ?? ""}</Text></span></p>
                        {lineOf(answer) === undefined && answer.tensors.map((tensor) => (
                            <OutputCard key={tensor.name} tensor={tensor} tensors={answer.tensors} picture={undefined} chosen={chosen} labels={props.labels} isClassified={false} />
                        ))}
                    </li>
                ))}
            </ol>
        </>
    );
}

const MAX_LINE = 4;
const MAX_JOINED = 20_000;

/** A response of few values in one line; undefined for others. */
function lineOf({ tensors }: Answer): string | undefined {
    if (tensors.some((tensor) => tensor.values.length > MAX_LINE)) return undefined;
    const shown = tensors.map((tensor) => {
        const values = Array.from({ length: tensor.values.length }, (_, index) => shownElement(tensor, index)).join(", ");
        return tensors.length > 1 ? `${tensor.name}: ${values}` : values;
    });
    return shown.join("  ").length > 2000 ? undefined : shown.join("  ");
}

/** The texts of a stream of words in one; undefined if responses have anything but one text. */
function joinedText(answers: readonly Answer[]): string | undefined {
    if (answers.length < 2) return undefined;
    const words: string[] = [];
    for (const { tensors } of answers) {
        const [tensor] = tensors;
        if (tensors.length !== 1 || tensor?.datatype !== "BYTES" || tensor.values.length !== 1) return undefined;
        words.push(new TextDecoder().decode(tensor.values[0]));
    }
    const isSpaced = words.some((word) => /^\s|\s$/.test(word));
    return words.join(isSpaced ? "" : " ").slice(-MAX_JOINED);
}

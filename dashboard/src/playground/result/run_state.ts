/** One request after another: what was sent, what came back. */

import { signal } from "@preact/signals";
import { InputProblem } from "../tensor/elements";
import type { FormState } from "../form/form_state";
import type { Pixels } from "../picture/resize";
import type { Answer } from "../wire/infer_answer";
import type { InferCall } from "../wire/infer_body";
import { type Exchange, InferFailure, infer, inferStream } from "../wire/requests";

export interface StreamedAnswer {
    number: number;
    atMs: number;
    answer: Answer;
}

export interface Failure {
    message: string;
    status: number;
    requestId: string;
    timing: string | null;
}

export type Run =
    | { phase: "idle" }
    | { phase: "running"; call: InferCall }
    | { phase: "answered"; call: InferCall; exchange: Exchange; picture: Pixels | undefined }
    | { phase: "streamed"; call: InferCall; totalMs: number; requestId: string; isCancelled: boolean }
    | { phase: "failed"; failure: Failure };

/** Responses of a stream that are kept; the older ones are only counted. */
export const MAX_KEPT = 200;

export class RunState {
    readonly run = signal<Run>({ phase: "idle" });
    readonly streamed = signal<StreamedAnswer[]>([]);
    readonly streamedCount = signal(0);
    private stop: AbortController | undefined;

    constructor(private readonly form: FormState, private readonly version: string | undefined) {}

    /** Send what the form has; a problem of the form or of the server becomes the state. */
    async send(): Promise<void> {
        this.stop?.abort();
        const stop = new AbortController();
        this.stop = stop;
        this.streamed.value = [];
        this.streamedCount.value = 0;
        try {
            const call = this.form.call(newId());
            const picture = this.form.pictureInput()?.seenPicture();
            this.run.value = { phase: "running", call };
            if (call.isStream) await this.stream(call, stop.signal);
            else {
                const exchange = await infer(this.form.model.name, this.version, call, stop.signal);
                if (this.stop === stop) this.run.value = { phase: "answered", call, exchange, picture };
            }
            this.form.sequenceAnswered();
        } catch (error) {
            if (this.stop !== stop || stop.signal.aborted) return;
            this.run.value = { phase: "failed", failure: failureOf(error) };
        }
    }

    private async stream(call: InferCall, signal: AbortSignal): Promise<void> {
        const began = performance.now();
        try {
            const { totalMs, requestId } = await inferStream(this.form.model.name, this.version, call, signal, (answer, atMs) => {
                if (signal.aborted) return;
                const number = ++this.streamedCount.value;
                this.streamed.value = [...this.streamed.value.slice(1 - MAX_KEPT), { number, atMs, answer }];
            });
            this.run.value = { phase: "streamed", call, totalMs, requestId, isCancelled: false };
        } catch (error) {
            if (!signal.aborted || this.run.value.phase !== "running" || this.run.value.call !== call) throw error;
            this.run.value = { phase: "streamed", call, totalMs: performance.now() - began, requestId: call.id, isCancelled: true };
        }
    }

    /** Close the connection of the request: the server cancels it. */
    cancel(): void {
        this.stop?.abort();
        const { value } = this.run;
        if (value.phase === "running" && !value.call.isStream) {
            this.run.value = { phase: "failed", failure: { message: "Cancelled.", status: 0, requestId: value.call.id, timing: null } };
        }
    }
}

export function failureOf(error: unknown): Failure {
    if (error instanceof InferFailure) {
        const { message, status, requestId, timing } = error;
        return { message, status, requestId, timing };
    }
    if (error instanceof InputProblem) return { message: error.message, status: 0, requestId: "", timing: null };
    return { message: error instanceof Error ? error.message : String(error), status: 0, requestId: "", timing: null };
}

function newId(): string {
    const random = crypto.getRandomValues(new Uint32Array(1))[0]!;
    return `page-${random.toString(16).padStart(8, "0")}`;
}

/** Requests of the playground by fetch: the form's metadata, one inference, a stream. */

import { ApiError, address, get, keyHeaders, modelPath } from "../../api";
import { EventParser } from "../../state/event_stream";
import { type Answer, decodeAnswer, errorText, readAnswer } from "./infer_answer";
import { type EncodedCall, type InferCall, encodeCall } from "./infer_body";
import { type Config, type Metadata, type ModelDescription, describeModel } from "./model";

/** A response that is longer than this is not read: the page would need several times as much memory. */
const MAX_ANSWER_BYTES = 1 << 29;
const PREVIEW_BYTES = 16 * 1024;
const REQUEST_ID = "triton-request-id";
const JSON_LENGTH = "Inference-Header-Content-Length";

/** A request that the server, or the way to it, has refused. */
export class InferFailure extends Error {
    constructor(message: string, readonly status: number, readonly requestId: string, readonly timing: string | null = null) {
        super(message);
    }
}

export interface Exchange {
    answer: Answer;
    /** From sending to the last byte of the response. */
    totalMs: number;
    /** The value of `Server-Timing`. */
    timing: string | null;
    bytes: number;
    requestId: string;
}

/** Read what the form needs. Rejects with ApiError, or with Error for a model without metadata. */
export async function loadDescription(model: string, version: string | undefined, signal: AbortSignal): Promise<ModelDescription> {
    const path = modelPath(model, version);
    const [metadata, config] = await Promise.all([
        get<Metadata>(path, signal),
        get<Config>(`${path}/config`, signal).catch((error: unknown) => {
            if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return undefined;
            throw error;
        }),
    ]);
    return describeModel(metadata, config);
}

/** Send a call. Rejects with InferFailure. */
export async function infer(model: string, version: string | undefined, call: InferCall, signal: AbortSignal): Promise<Exchange> {
    const { response, began } = await send(model, version, encodeCall(call), call.id, signal, { "x-naiad-timing": "1" });
    const size = Number(response.headers.get("content-length") ?? 0);
    if (size > MAX_ANSWER_BYTES) {
        await response.body?.cancel();
        throw failure(response, `The response has ${Math.round(size / 1e6)} MB. This page reads at most ${Math.round(MAX_ANSWER_BYTES / 1e6)} MB: use a client.`);
    }
    const body = new Uint8Array(await response.arrayBuffer());
    const totalMs = performance.now() - began;
    const length = response.headers.get(JSON_LENGTH);
    try {
        const answer = decodeAnswer(body, length === null ? undefined : Number(length));
        return {
            answer, totalMs, bytes: body.length,
            timing: response.headers.get("server-timing"),
            requestId: answer.id || response.headers.get(REQUEST_ID) || "",
        };
    } catch (error) {
        throw failure(response, `The response is not what the protocol says: ${(error as Error).message}\n${preview(body)}`);
    }
}

function preview(body: Uint8Array): string {
    return new TextDecoder().decode(body.subarray(0, PREVIEW_BYTES)).slice(0, 500);
}

/** Send a body that is encoded already, and read the response without decoding it. Rejects with InferFailure. */
export async function inferEncoded(model: string, version: string | undefined, encoded: EncodedCall, signal: AbortSignal): Promise<void> {
    const { response } = await send(model, version, encoded, "", signal, {});
    await response.arrayBuffer();
}

/** Read a stream of responses; `onAnswer` gets each with its time since the request, in milliseconds. */
export async function inferStream(
    model: string,
    version: string | undefined,
    call: InferCall,
    signal: AbortSignal,
    onAnswer: (answer: Answer, atMs: number) => void,
): Promise<{ totalMs: number; requestId: string }> {
    const { response, began } = await send(model, version, encodeCall(call), call.id, signal, {});
    const requestId = response.headers.get(REQUEST_ID) ?? call.id;
    const parser = new EventParser((_, data) => {
        const parsed = data.startsWith('{"error"') ? errorText(data, response.status) : undefined;
        if (parsed !== undefined) throw failure(response, parsed, call.id);
        onAnswer(readAnswer(data), performance.now() - began);
    });
    if (response.body) {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        try {
            for (;;) {
                const { done, value } = await reader.read();
                if (done) break;
                parser.push(value);
            }
        } finally {
            void reader.cancel().catch(() => undefined); // It has ended, or the user does not want the rest.
        }
    }
    return { totalMs: performance.now() - began, requestId };
}

async function send(
    model: string, version: string | undefined, { body, headers }: EncodedCall, id: string, signal: AbortSignal, more: Record<string, string>,
): Promise<{ response: Response; began: number }> {
    const began = performance.now();
    let response: Response;
    try {
        response = await fetch(address(`${modelPath(model, version)}/infer`), {
            method: "POST",
            body,
            headers: { ...headers, ...more, ...keyHeaders() },
            credentials: "same-origin",
            cache: "no-store",
            signal,
        });
    } catch (error) {
        if (signal.aborted) throw error;
        throw new InferFailure("The server does not answer. It may have stopped, or a proxy has refused the request.", 0, id);
    }
    if (!response.ok) throw failure(response, errorText(await response.text(), response.status), id);
    return { response, began };
}

function failure(response: Response, message: string, id = ""): InferFailure {
    return new InferFailure(message, response.status, response.headers.get(REQUEST_ID) || id, response.headers.get("server-timing"));
}

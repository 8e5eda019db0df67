/** The body of an inference request: JSON for few values, the binary form of tensors for many. */

import { type Tensor, elementBytes, isFloat, tensorBytes } from "../tensor/datatypes";
import { textOf } from "../tensor/elements";
import { toBf16, toFp16 } from "../tensor/half";
import { writeExact } from "../tensor/json";

export interface RequestedOutput {
    name: string;
    /** Ask for this many of the largest values with their labels instead of all values. */
    classCount?: number;
}

export interface InferCall {
    id: string;
    inputs: Tensor[];
    /** Empty: all outputs with their values. */
    outputs: RequestedOutput[];
    parameters: Record<string, unknown>;
    /** Responses as server-sent events. */
    isStream: boolean;
    /** Outputs as binary tensors. */
    isAnswerBinary: boolean;
}

export interface EncodedCall {
    body: string | Uint8Array<ArrayBuffer>;
    headers: Record<string, string>;
    /** Where the bytes of each input begin in a binary body, in the order of the inputs; empty for JSON. */
    offsets: number[];
}

/** Larger inputs are sent in the binary form. */
export const MAX_JSON_BYTES = 4 * 1024;
export const STREAM_TYPE = "text/event-stream";

/** Encode a call. */
export function encodeCall(call: InferCall): EncodedCall {
    const isBinary = needsBinary(call.inputs);
    const chunks = isBinary ? call.inputs.map(binaryOf) : [];
    const text = writeExact(document(call, isBinary ? chunks.map((each) => each.length) : undefined));
    const headers: Record<string, string> = call.isStream ? { Accept: STREAM_TYPE } : {};
    if (!isBinary) return { body: text, headers: { "Content-Type": "application/json", ...headers }, offsets: [] };
    const head = new TextEncoder().encode(text);
    const body = new Uint8Array(head.length + chunks.reduce((sum, each) => sum + each.length, 0));
    body.set(head);
    const offsets: number[] = [];
    let at = head.length;
    for (const chunk of chunks) {
        body.set(chunk, at);
        offsets.push(at);
        at += chunk.length;
    }
    headers["Content-Type"] = "application/octet-stream";
    headers["Inference-Header-Content-Length"] = String(head.length);
    return { body, headers, offsets };
}

/** Whether tensors are too large for JSON, or have values that it cannot hold. */
export function needsBinary(tensors: readonly Tensor[]): boolean {
    const size = tensors.reduce((sum, each) => sum + tensorBytes(each), 0);
    return size > MAX_JSON_BYTES || tensors.some(hasNoJson);
}

function hasNoJson(tensor: Tensor): boolean {
    if (tensor.datatype === "FP16" || tensor.datatype === "BF16") return true;
    if (tensor.datatype === "BYTES") return tensor.values.some((each) => textOf(each) === undefined);
    return isFloat(tensor.datatype) && Array.prototype.some.call(tensor.values, (each: number) => !Number.isFinite(each));
}

/** The JSON object of a call; `lengths` are the bytes of each input behind it, if the inputs are binary. */
export function document(call: InferCall, lengths?: number[]): Record<string, unknown> {
    const parameters = { ...call.parameters };
    if (call.isAnswerBinary && !call.isStream && !call.outputs.length) parameters["binary_data_output"] = true;
    return {
        ...(call.id ? { id: call.id } : {}),
        ...(Object.keys(parameters).length ? { parameters } : {}),
        inputs: call.inputs.map((tensor, index) => ({
            name: tensor.name,
            datatype: tensor.datatype,
            shape: tensor.shape,
            ...(lengths ? { parameters: { binary_data_size: lengths[index] } } : { data: jsonData(tensor) }),
        })),
        ...(call.outputs.length ? { outputs: call.outputs.map((output) => requested(output, call)) } : {}),
    };
}

function requested(output: RequestedOutput, call: InferCall): Record<string, unknown> {
    const parameters: Record<string, unknown> = {};
    if (output.classCount) parameters["classification"] = output.classCount;
    if (call.isAnswerBinary && !call.isStream) parameters["binary_data"] = true;
    return { name: output.name, ...(Object.keys(parameters).length ? { parameters } : {}) };
}

/** The values of a tensor as JSON has them: numbers, booleans or strings in one flat list. */
export function jsonData(tensor: Tensor): unknown[] {
    if (tensor.datatype === "BYTES") return tensor.values.map((each) => textOf(each) ?? "");
    if (tensor.datatype === "BOOL") return Array.from(tensor.values, Boolean);
    const values: (number | bigint)[] = Array.from(tensor.values as ArrayLike<number | bigint>);
    return tensor.datatype === "FP32" ? values.map((each) => shortFloat(Number(each))) : values;
}

/** The shortest decimal that is the same float32. */
function shortFloat(value: number): number {
    for (let digits = 6; digits < 9; digits++) {
        const short = Number(value.toPrecision(digits));
        if (Math.fround(short) === value) return short;
    }
    return value;
}

/** The bytes of a tensor: little-endian numbers, and for BYTES each element behind its length. */
export function binaryOf(tensor: Tensor): Uint8Array {
    if (tensor.datatype === "BYTES") return withLengths(tensor.values);
    if (tensor.datatype === "FP16" || tensor.datatype === "BF16") {
        const toBits = tensor.datatype === "FP16" ? toFp16 : toBf16;
        const halves = new Uint16Array(tensor.values.length);
        for (let index = 0; index < halves.length; index++) halves[index] = toBits(Number(tensor.values[index]));
        return new Uint8Array(halves.buffer);
    }
    return new Uint8Array(tensor.values.buffer, tensor.values.byteOffset, tensor.values.length * elementBytes(tensor.datatype));
}

function withLengths(elements: readonly Uint8Array[]): Uint8Array {
    const bytes = new Uint8Array(elements.reduce((sum, each) => sum + 4 + each.length, 0));
    const view = new DataView(bytes.buffer);
    let at = 0;
    for (const element of elements) {
        view.setUint32(at, element.length, true);
        bytes.set(element, at + 4);
        at += 4 + element.length;
    }
    return bytes;
}

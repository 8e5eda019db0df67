/** An inference response, JSON or with binary tensors, as tensors. */

import { type Datatype, type Tensor, elementBytes, elementCount, isDatatype, makeNumbers, tensorOf } from "../tensor/datatypes";
import { bytesOf } from "../tensor/elements";
import { fromBf16, fromFp16 } from "../tensor/half";
import { parseExact } from "../tensor/json";

export interface Answer {
    id: string;
    model: string;
    version: string;
    parameters: Record<string, unknown>;
    tensors: Tensor[];
}

interface AnswerDocument {
    id?: string;
    model_name?: string;
    model_version?: string;
    parameters?: Record<string, unknown>;
    outputs?: {
        name: string;
        datatype: string;
        shape: number[];
        data?: unknown[];
        parameters?: { binary_data_size?: number };
    }[];
}

/** Decode a body; `jsonBytes` is `Inference-Header-Content-Length`, or undefined if all of it is JSON. Throws Error. */
export function decodeAnswer(body: Uint8Array, jsonBytes?: number): Answer {
    const text = new TextDecoder().decode(jsonBytes === undefined ? body : body.subarray(0, jsonBytes));
    return readAnswer(text, body.subarray(jsonBytes ?? body.length));
}

/** Decode the JSON of a response and the bytes behind it. Throws Error for another form than the protocol's. */
export function readAnswer(text: string, binary: Uint8Array = new Uint8Array()): Answer {
    const document = parseExact(text) as AnswerDocument;
    let at = 0;
    const tensors = (document.outputs ?? []).map((output) => {
        const datatype = output.datatype;
        if (!isDatatype(datatype)) throw new Error(`the output '${output.name}' has the unknown datatype '${datatype}'`);
        const size = output.parameters?.binary_data_size;
        if (size === undefined) return fromJson(output.name, datatype, output.shape, output.data ?? []);
        at += size;
        if (at > binary.length) throw new Error(`the response ends inside of the output '${output.name}'`);
        return fromBinary(output.name, datatype, output.shape, binary.subarray(at - size, at));
    });
    return {
        id: document.id ?? "",
        model: document.model_name ?? "",
        version: document.model_version ?? "",
        parameters: document.parameters ?? {},
        tensors,
    };
}

function fromJson(name: string, datatype: Datatype, shape: number[], data: unknown[]): Tensor {
    const flat = data.flat(Infinity);
    if (datatype === "BYTES") {
        return tensorOf(name, datatype, shape, flat.map((each) => bytesOf(typeof each === "string" ? each : String(each))));
    }
    const values = makeNumbers(datatype, flat.length) as { [index: number]: number | bigint } & ReturnType<typeof makeNumbers>;
    const isBig = values instanceof BigInt64Array || values instanceof BigUint64Array;
    flat.forEach((each, index) => {
        values[index] = isBig ? BigInt(each as number | bigint) : each === null ? NaN : Number(each);
    });
    return tensorOf(name, datatype, shape, values);
}

/** A tensor of bytes that may lie at any offset. */
export function fromBinary(name: string, datatype: Datatype, shape: number[], bytes: Uint8Array): Tensor {
    const count = elementCount(shape);
    if (datatype === "BYTES") return tensorOf(name, datatype, shape, elementsOf(name, bytes));
    const width = elementBytes(datatype);
    if (bytes.length !== count * width) {
        throw new Error(`the output '${name}' has ${bytes.length} bytes, expected ${count * width} for the shape [${shape.join(", ")}]`);
    }
    const aligned = bytes.slice().buffer; // Typed arrays of more than one byte need an aligned offset.
    if (datatype === "FP16" || datatype === "BF16") {
        const toNumber = datatype === "FP16" ? fromFp16 : fromBf16;
        return tensorOf(name, datatype, shape, Float32Array.from(new Uint16Array(aligned), toNumber));
    }
    const values = makeNumbers(datatype, 0);
    const typed = values.constructor as new (buffer: ArrayBuffer) => typeof values;
    return tensorOf(name, datatype, shape, new typed(aligned));
}

function elementsOf(name: string, bytes: Uint8Array): Uint8Array[] {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const elements: Uint8Array[] = [];
    for (let at = 0; at < bytes.length; ) {
        const end = at + 4 <= bytes.length ? at + 4 + view.getUint32(at, true) : Infinity;
        if (end > bytes.length) throw new Error(`the output '${name}' ends inside of an element`);
        elements.push(bytes.subarray(at + 4, end));
        at = end;
    }
    return elements;
}

/** The message of an error response, as the server has written it. */
export function errorText(body: string, status: number): string {
    try {
        const parsed = JSON.parse(body) as { error?: unknown };
        if (typeof parsed.error === "string") return parsed.error;
    } catch {
        // A proxy's page, for example: it is shown as it is.
    }
    return body.trim().slice(0, 2000) || `HTTP status ${status} without a message`;
}

/** What the copied code has to say: the request, without what belongs to this page alone. */

import type { PictureSettings } from "../picture/settings";
import type { Placement } from "../picture/resize";
import type { InferCall } from "../wire/infer_body";
import { type Datatype, tensorBytes } from "../tensor/datatypes";
import { MAX_JSON_BYTES, encodeCall } from "../wire/infer_body";
import type { ModelDescription } from "../wire/model";

/** How an input was made of the file of a picture. */
export interface PictureSource {
    fileName: string;
    settings: PictureSettings;
    channels: number;
    width: number;
    height: number;
    place: Placement["place"];
    hasAlpha: boolean;
}

export interface CodeRequest {
    /** The address of the server, with the prefix of a proxy and a slash at the end. */
    root: string;
    model: string;
    version: string;
    call: InferCall;
    /** By the name of the input. */
    pictures: ReadonlyMap<string, PictureSource>;
    /** The server wants a key: the code reads it from NAIAD_API_KEY, so that no key is copied. */
    hasKey: boolean;
}

export interface Code {
    text: string;
    /** The code reads this file, which the page offers. */
    needsBody: boolean;
}

export const BODY_FILE = "request.bin";
export const KEY_VARIABLE = "NAIAD_API_KEY";

/** A call for code: outputs as JSON unless they have no JSON form, and no id. */
export function callForCode(call: InferCall, model: ModelDescription): InferCall {
    const wanted = call.outputs.length ? call.outputs : model.outputs.map(({ name }) => ({ name, classCount: 0 }));
    const hasNoJson = wanted.some(({ name, classCount }) => {
        const datatype = model.outputs.find((each) => each.name === name)?.datatype;
        return !classCount && (datatype === "FP16" || datatype === "BF16");
    });
    return { ...call, id: "", isAnswerBinary: hasNoJson };
}

/** The body of the file that the code reads. */
export function bodyOf(request: CodeRequest): Uint8Array<ArrayBuffer> {
    const { body } = encodeCall(request.call);
    return typeof body === "string" ? new TextEncoder().encode(body) : body;
}

export function inferUrl(request: CodeRequest): string {
    const version = request.version ? `/versions/${encodeURIComponent(request.version)}` : "";
    return `${request.root}v2/models/${encodeURIComponent(request.model)}${version}/infer`;
}

/** Whether all inputs are short enough to be written into code. */
export function isShort(request: CodeRequest): boolean {
    return request.call.inputs.reduce((sum, each) => sum + tensorBytes(each), 0) <= MAX_JSON_BYTES;
}

export const NUMPY_TYPES: Record<Exclude<Datatype, "BYTES">, string> = {
    BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64",
    INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64",
    FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64",
};

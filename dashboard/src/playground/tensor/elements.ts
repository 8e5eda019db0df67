/** Elements of tensors as text, and text as elements; a mistake is an InputProblem, which says how to mend it. */

import { type Datatype, type Numbers, type Tensor, elementCount, integerBounds, isFloat, makeNumbers, tensorOf } from "./datatypes";
import { fromBf16, fromFp16, toBf16, toFp16 } from "./half";
import { parseExact } from "./json";

/** A value that cannot be sent. `message` names the value and what to write instead. */
export class InputProblem extends Error {}

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const MAX_HEX_BYTES = 32;

export function bytesOf(text: string): Uint8Array {
    return encoder.encode(text);
}

/** The text of an element of BYTES; undefined if it is no UTF-8. */
export function textOf(bytes: Uint8Array): string | undefined {
    try {
        return strict.decode(bytes);
    } catch {
        return undefined;
    }
}

/** An element of BYTES for people: its text, or its first bytes in hexadecimal. */
export function shownBytes(bytes: Uint8Array): string {
    const text = textOf(bytes);
    if (text !== undefined) return text;
    const hex = Array.from(bytes.subarray(0, MAX_HEX_BYTES), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return `${bytes.length} bytes: ${hex}${bytes.length > MAX_HEX_BYTES ? " …" : ""}`;
}

/** The shortest decimal of a number that gives the same value in its datatype. */
export function shownNumber(value: number | bigint, datatype: Datatype): string {
    if (typeof value === "bigint" || Number.isInteger(value) || !Number.isFinite(value)) return String(value);
    const round = datatype === "FP32" ? Math.fround : datatype === "FP16" ? (x: number) => fromFp16(toFp16(x))
        : datatype === "BF16" ? (x: number) => fromBf16(toBf16(x)) : undefined;
    if (!round) return String(value);
    for (let digits = 1; digits < 9; digits++) {
        const short = Number(value.toPrecision(digits));
        if (round(short) === value) return String(short);
    }
    return String(Number(value.toPrecision(9)));
}

/** An element as text. */
export function shownElement(tensor: Tensor, index: number): string {
    if (tensor.datatype === "BYTES") return shownBytes(tensor.values[index] ?? new Uint8Array());
    const value = tensor.values[index] ?? 0;
    return tensor.datatype === "BOOL" ? String(Boolean(value)) : shownNumber(value, tensor.datatype);
}

/** Parse what a person has written for one element. */
export function parseNumber(datatype: Exclude<Datatype, "BYTES">, text: string): number | bigint {
    const word = text.trim();
    if (datatype === "BOOL" && /^(true|false)$/i.test(word)) return word.toLowerCase() === "true" ? 1 : 0;
    const bounds = integerBounds(datatype);
    if (!bounds) return parseFloatOf(datatype, word);
    if (!/^[+-]?\d+(\.0*)?$/.test(word)) throw problem(datatype, word, `write an integer ${range(bounds)}`);
    const value = BigInt(word.replace(/^\+|\.0*$/g, ""));
    if (value < bounds[0] || value > bounds[1]) throw problem(datatype, word, `write an integer ${range(bounds)}`);
    return datatype === "INT64" || datatype === "UINT64" ? value : Number(value);
}

function parseFloatOf(datatype: Datatype, word: string): number {
    if (/^[+-]?nan$/i.test(word)) return NaN;
    if (/^[+-]?inf(inity)?$/i.test(word)) return word.startsWith("-") ? -Infinity : Infinity;
    const value = Number(word.includes(".") ? word : word.replace(",", "."));
    if (word === "" || Number.isNaN(value)) throw problem(datatype, word, "write a number such as 0.5, or nan");
    return value;
}

function problem(datatype: Datatype, word: string, fix: string): InputProblem {
    return new InputProblem(`${word === "" ? "an empty value" : `'${word.slice(0, 40)}'`} is no ${datatype}: ${fix}`);
}

function range([low, high]: [bigint, bigint]): string {
    return `from ${low} to ${high}`;
}

/** A tensor from one text an element. */
export function tensorFromTexts(name: string, datatype: Datatype, shape: number[], texts: readonly string[]): Tensor {
    if (texts.length !== elementCount(shape)) {
        throw new InputProblem(`${texts.length} values for the shape [${shape.join(", ")}], which has ${elementCount(shape)}`);
    }
    if (datatype === "BYTES") return tensorOf(name, datatype, shape, texts.map(bytesOf));
    const values = makeNumbers(datatype, texts.length);
    texts.forEach((text, index) => setElement(values, index, parseNumber(datatype, text)));
    return tensorOf(name, datatype, shape, values);
}

function setElement(values: Numbers, index: number, value: number | bigint): void {
    (values as { [index: number]: number | bigint })[index] = value;
}

const MAX_DEPTH = 16;

/**
 * A tensor from JSON: a value, a flat list, or lists nested like the shape. A nested list decides the free dimensions
 * (-1); a flat list fills the only one.
 */
export function tensorFromJson(name: string, datatype: Datatype, dims: readonly number[], text: string): Tensor {
    let parsed: unknown;
    try {
        parsed = parseExact(text);
    } catch (error) {
        throw new InputProblem(`this is no JSON: ${(error as Error).message}`);
    }
    const nested = shapeOf(parsed);
    const texts: string[] = [];
    flatten(parsed, datatype, texts, 0);
    const shape = nested.length === dims.length ? nested : filled(dims, texts.length);
    dims.forEach((size, axis) => {
        if (size >= 0 && size !== shape[axis]) {
            throw new InputProblem(`the list has the shape [${nested.join(", ")}], but the input [${dims.join(", ")}]`);
        }
    });
    return tensorFromTexts(name, datatype, shape, texts);
}

function shapeOf(value: unknown): number[] {
    const shape = [];
    for (let each = value; Array.isArray(each) && shape.length < MAX_DEPTH; each = each[0]) shape.push(each.length);
    return shape;
}

function flatten(value: unknown, datatype: Datatype, into: string[], depth: number): void {
    if (depth > MAX_DEPTH) throw new InputProblem(`lists are nested more than ${MAX_DEPTH} deep`);
    if (Array.isArray(value)) {
        for (const each of value) flatten(each, datatype, into, depth + 1);
    } else if (datatype === "BYTES") {
        into.push(typeof value === "string" ? value : JSON.stringify(value));
    } else if (value === null && isFloat(datatype)) {
        into.push("nan");
    } else if (typeof value === "object" || value === null) {
        throw new InputProblem(`${JSON.stringify(value).slice(0, 40)} is no ${datatype}: write numbers in lists`);
    } else {
        into.push(String(value));
    }
}

/** The shape for a number of elements: outer free dimensions are 1, the innermost free one takes the rest. */
export function filled(dims: readonly number[], count: number): number[] {
    const inner = dims.lastIndexOf(-1);
    const shape = dims.map((size) => (size < 0 ? 1 : size));
    if (inner < 0) return shape;
    const others = elementCount(shape);
    if (others === 0 || count % others) {
        throw new InputProblem(`${count} values do not fill the shape [${dims.join(", ")}]: write a multiple of ${others}`);
    }
    shape[inner] = count / others;
    return shape;
}

/** Datatypes of the protocol, and how a tensor is kept in the page. */

export const DATATYPES = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES",
] as const;
export type Datatype = (typeof DATATYPES)[number];

export type Numbers =
    | Uint8Array | Uint16Array | Uint32Array | BigUint64Array
    | Int8Array | Int16Array | Int32Array | BigInt64Array
    | Float32Array | Float64Array;

/** Row-major values. FP16 and BF16 are kept as float32, BOOL as 0 and 1, an element of BYTES as its bytes. */
export type Tensor = { name: string; shape: number[] } & (
    | { datatype: Exclude<Datatype, "BYTES">; values: Numbers }
    | { datatype: "BYTES"; values: Uint8Array[] }
);

interface Facts {
    bytes: number;
    make: (count: number) => Numbers;
    /** Bounds of integers. */
    low?: bigint;
    high?: bigint;
}

const FACTS: Record<Exclude<Datatype, "BYTES">, Facts> = {
    BOOL: { bytes: 1, make: (n) => new Uint8Array(n), low: 0n, high: 1n },
    UINT8: { bytes: 1, make: (n) => new Uint8Array(n), low: 0n, high: 0xffn },
    UINT16: { bytes: 2, make: (n) => new Uint16Array(n), low: 0n, high: 0xffffn },
    UINT32: { bytes: 4, make: (n) => new Uint32Array(n), low: 0n, high: 0xffffffffn },
    UINT64: { bytes: 8, make: (n) => new BigUint64Array(n), low: 0n, high: (1n << 64n) - 1n },
    INT8: { bytes: 1, make: (n) => new Int8Array(n), low: -(1n << 7n), high: (1n << 7n) - 1n },
    INT16: { bytes: 2, make: (n) => new Int16Array(n), low: -(1n << 15n), high: (1n << 15n) - 1n },
    INT32: { bytes: 4, make: (n) => new Int32Array(n), low: -(1n << 31n), high: (1n << 31n) - 1n },
    INT64: { bytes: 8, make: (n) => new BigInt64Array(n), low: -(1n << 63n), high: (1n << 63n) - 1n },
    FP16: { bytes: 2, make: (n) => new Float32Array(n) },
    BF16: { bytes: 2, make: (n) => new Float32Array(n) },
    FP32: { bytes: 4, make: (n) => new Float32Array(n) },
    FP64: { bytes: 8, make: (n) => new Float64Array(n) },
};

export function isDatatype(text: string): text is Datatype {
    return (DATATYPES as readonly string[]).includes(text);
}

export function isFloat(datatype: Datatype): boolean {
    return /^B?FP?\d/.test(datatype) && datatype !== "BYTES";
}

export function is64Bit(datatype: Datatype): boolean {
    return datatype === "INT64" || datatype === "UINT64";
}

/** Bytes of one element in the binary form; 0 for BYTES, whose elements differ. */
export function elementBytes(datatype: Datatype): number {
    return datatype === "BYTES" ? 0 : FACTS[datatype].bytes;
}

/** An array of zeros for a datatype other than BYTES. */
export function makeNumbers(datatype: Exclude<Datatype, "BYTES">, count: number): Numbers {
    return FACTS[datatype].make(count);
}

/** The least and the greatest integer of a datatype; undefined for floating-point numbers and BYTES. */
export function integerBounds(datatype: Datatype): [bigint, bigint] | undefined {
    if (datatype === "BYTES") return undefined;
    const { low, high } = FACTS[datatype];
    return low === undefined || high === undefined ? undefined : [low, high];
}

export function elementCount(shape: readonly number[]): number {
    return shape.reduce((product, size) => product * size, 1);
}

/** Bytes of a tensor in the binary form of the protocol. */
export function tensorBytes(tensor: Tensor): number {
    if (tensor.datatype === "BYTES") return tensor.values.reduce((sum, each) => sum + 4 + each.length, 0);
    return tensor.values.length * elementBytes(tensor.datatype);
}

/** A tensor from values in the order of its elements. */
export function tensorOf(name: string, datatype: Datatype, shape: number[], values: Numbers | Uint8Array[]): Tensor {
    return { name, datatype, shape, values } as Tensor;
}

/** FP16 and BF16 bits to numbers and back, rounded to the nearest, ties to even. */

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

export function fromBf16(half: number): number {
    bits[0] = half << 16;
    return float[0]!;
}

export function toBf16(value: number): number {
    float[0] = value;
    const all = bits[0]!;
    if (Number.isNaN(value)) return 0x7fc0;
    return ((all + 0x7fff + ((all >>> 16) & 1)) >>> 16) & 0xffff;
}

export function fromFp16(half: number): number {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
}

export function toFp16(value: number): number {
    if (Number.isNaN(value)) return 0x7e00;
    const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
    const size = Math.abs(value);
    if (size >= 65520) return sign | 0x7c00;
    // The distance between neighbors: of the smallest normal numbers and all below them it is 2 to the power -24.
    const exponent = size < 2 ** -14 ? -14 : Math.floor(Math.log2(size));
    const step = 2 ** (exponent - 10);
    const count = roundToEven(size / step);
    // A count of 2048 is the next power of two: the addition carries it into the exponent.
    return sign | (size < 2 ** -14 ? count : ((exponent + 15) << 10) + (count - 1024));
}

function roundToEven(value: number): number {
    const floor = Math.floor(value);
    const rest = value - floor;
    if (rest !== 0.5) return Math.round(value);
    return floor % 2 === 0 ? floor : floor + 1;
}

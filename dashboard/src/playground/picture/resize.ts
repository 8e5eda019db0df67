/**
 * Pixels to another size with the arithmetic of Pillow (bilinear, of 8 bits), so that the copied Python code and the page
 * send the same numbers.
 */

export interface Pixels {
    width: number;
    height: number;
    /** 1 (gray) or 3 (RGB). */
    channels: number;
    data: Uint8Array | Uint8ClampedArray;
}

export type Fit = "stretch" | "crop" | "pad";

const PRECISION_BITS = 22;
const HALF = 1 << (PRECISION_BITS - 1);

/** RGB of RGBA pixels; transparent ones are over white. */
export function withoutAlpha(rgba: Uint8Array | Uint8ClampedArray, width: number, height: number): Pixels {
    const data = new Uint8Array(width * height * 3);
    for (let from = 0, to = 0; from < rgba.length; from += 4, to += 3) {
        const alpha = rgba[from + 3]!;
        for (let channel = 0; channel < 3; channel++) {
            const value = rgba[from + channel]!;
            data[to + channel] = alpha === 255 ? value : Math.round((value * alpha + 255 * (255 - alpha)) / 255);
        }
    }
    return { width, height, channels: 3, data };
}

/** Luma of ITU-R 601, as Pillow's mode L. */
export function toGray({ width, height, data }: Pixels): Pixels {
    const gray = new Uint8Array(width * height);
    for (let from = 0, to = 0; to < gray.length; from += 3, to++) {
        gray[to] = (data[from]! * 19595 + data[from + 1]! * 38470 + data[from + 2]! * 7471 + 0x8000) >> 16;
    }
    return { width, height, channels: 1, data: gray };
}

/** Where a picture of one size lands in another: the part that is read, and the place that is written. */
export interface Placement {
    crop: { left: number; top: number; width: number; height: number };
    place: { left: number; top: number; width: number; height: number };
}

/** Whole pixels; both rectangles keep at least one. */
export function placement(fit: Fit, from: { width: number; height: number }, to: { width: number; height: number }): Placement {
    const crop = { left: 0, top: 0, width: from.width, height: from.height };
    const place = { left: 0, top: 0, width: to.width, height: to.height };
    if (fit === "crop") {
        const scale = Math.min(from.width / to.width, from.height / to.height);
        crop.width = clamp(Math.floor(to.width * scale + 0.5), from.width);
        crop.height = clamp(Math.floor(to.height * scale + 0.5), from.height);
        crop.left = (from.width - crop.width) >> 1;
        crop.top = (from.height - crop.height) >> 1;
    } else if (fit === "pad") {
        const scale = Math.min(to.width / from.width, to.height / from.height);
        place.width = clamp(Math.floor(from.width * scale + 0.5), to.width);
        place.height = clamp(Math.floor(from.height * scale + 0.5), to.height);
        place.left = (to.width - place.width) >> 1;
        place.top = (to.height - place.height) >> 1;
    }
    return { crop, place };
}

function clamp(size: number, most: number): number {
    return Math.min(most, Math.max(1, size));
}

/** Fit pixels into a size. Padding is black. */
export function fitted(pixels: Pixels, width: number, height: number, fit: Fit): Pixels {
    const { crop, place } = placement(fit, pixels, { width, height });
    const scaled = resized(cropped(pixels, crop), place.width, place.height);
    if (place.width === width && place.height === height) return scaled;
    const { channels } = pixels;
    const data = new Uint8Array(width * height * channels);
    const row = place.width * channels;
    for (let y = 0; y < place.height; y++) {
        data.set(scaled.data.subarray(y * row, (y + 1) * row), ((y + place.top) * width + place.left) * channels);
    }
    return { width, height, channels, data };
}

function cropped(pixels: Pixels, { left, top, width, height }: Placement["crop"]): Pixels {
    if (width === pixels.width && height === pixels.height) return pixels;
    const { channels } = pixels;
    const data = new Uint8Array(width * height * channels);
    for (let y = 0; y < height; y++) {
        const begin = ((y + top) * pixels.width + left) * channels;
        data.set(pixels.data.subarray(begin, begin + width * channels), y * width * channels);
    }
    return { width, height, channels, data };
}

/** Scale pixels, first along rows, then along columns, as Pillow does. */
export function resized(pixels: Pixels, width: number, height: number): Pixels {
    const { channels } = pixels;
    let { data } = pixels;
    if (width !== pixels.width) {
        data = along(data, weights(pixels.width, width), pixels.height, pixels.width * channels, channels, width * channels, channels);
    }
    if (height !== pixels.height) {
        data = along(data, weights(pixels.height, height), width, channels, width * channels, channels, width * channels);
    }
    return { width, height, channels, data };

    /** Filter every line; strides are in elements: of lines and of pixels in a line, before and after. */
    function along(
        from: Pixels["data"], filters: Filter[], lines: number, lineFrom: number, stepFrom: number, lineTo: number, stepTo: number,
    ): Uint8Array {
        const to = new Uint8Array(lines * channels * filters.length);
        for (let line = 0; line < lines; line++) {
            for (let at = 0; at < filters.length; at++) {
                const { first, taps } = filters[at]!;
                for (let channel = 0; channel < channels; channel++) {
                    let sum = HALF;
                    let read = line * lineFrom + first * stepFrom + channel;
                    for (let tap = 0; tap < taps.length; tap++, read += stepFrom) sum += from[read]! * taps[tap]!;
                    to[line * lineTo + at * stepTo + channel] = Math.min(255, Math.max(0, sum >> PRECISION_BITS));
                }
            }
        }
        return to;
    }
}

interface Filter {
    first: number;
    /** Integers that sum up to about 2 to the power PRECISION_BITS. */
    taps: Int32Array;
}

function weights(from: number, to: number): Filter[] {
    const scale = from / to;
    const filterScale = Math.max(scale, 1);
    return Array.from({ length: to }, (_, at) => {
        const center = (at + 0.5) * scale;
        const first = Math.max(0, Math.trunc(center - filterScale + 0.5));
        const end = Math.min(from, Math.trunc(center + filterScale + 0.5));
        const parts = Array.from({ length: end - first }, (_, tap) => {
            const distance = Math.abs((tap + first - center + 0.5) * (1 / filterScale));
            return distance < 1 ? 1 - distance : 0;
        });
        const sum = parts.reduce((total, part) => total + part, 0);
        return { first, taps: Int32Array.from(parts, (part) => Math.trunc(0.5 + (part / sum) * (1 << PRECISION_BITS))) };
    });
}

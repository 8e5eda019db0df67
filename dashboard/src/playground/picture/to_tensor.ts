/** Pixels as the tensor of an input, and tensors as pixels. */

import { type Tensor, isFloat, makeNumbers, tensorOf, type Numbers } from "../tensor/datatypes";
import { InputProblem } from "../tensor/elements";
import { fromBf16, fromFp16, toBf16, toFp16 } from "../tensor/half";
import type { InputSpec } from "../wire/model";
import { pictureShape, type PictureShape } from "./layout";
import { type Pixels, fitted, toGray } from "./resize";
import type { PictureSettings } from "./settings";

/** The size that a picture gets for an input: the input's, otherwise the settings', otherwise its own. */
export function targetSize(input: InputSpec, settings: PictureSettings, picture: { width: number; height: number }): { width: number; height: number } {
    const [first, second] = sidesOf(input, settings);
    return {
        height: first > 0 ? first : settings.height || picture.height,
        width: second > 0 ? second : settings.width || picture.width,
    };
}

/** Height and width in the shape of the input for the chosen layout. */
function sidesOf(input: InputSpec, settings: PictureSettings): [number, number] {
    const [a = -1, b = -1, c = -1] = input.shape.slice(-3);
    return settings.layout === "NCHW" ? [b, c] : [a, b];
}

export function channelCount(input: InputSpec, settings: PictureSettings): number {
    const size = input.shape.at(settings.layout === "NCHW" ? -3 : -1) ?? -1;
    return size > 0 ? size : settings.colors === "GRAY" ? 1 : 3;
}

/** Scale, reorder and normalize RGB pixels. Throws InputProblem. */
export function pictureTensor(input: InputSpec, settings: PictureSettings, picture: Pixels): { tensor: Tensor; shown: Pixels } {
    const channels = channelCount(input, settings);
    if (channels !== 1 && channels !== 3 && channels !== 4) {
        throw new InputProblem(`the shape [${input.shape.join(", ")}] as ${settings.layout} has ${channels} channels: choose the other layout`);
    }
    const { width, height } = targetSize(input, settings, picture);
    const shown = fitted(settings.colors === "GRAY" || channels === 1 ? toGray(picture) : picture, width, height, settings.fit);
    const values = makeNumbers(input.datatype as Exclude<Tensor["datatype"], "BYTES">, width * height * channels);
    fill(values, shown, settings, channels, rounding(input.datatype));
    const inner = settings.layout === "NCHW" ? [channels, height, width] : [height, width, channels];
    const outer = input.shape.slice(0, -3).map(() => 1);
    return { tensor: tensorOf(input.name, input.datatype, [...outer, ...inner], values), shown };
}

function rounding(datatype: Tensor["datatype"]): (value: number) => number {
    if (datatype === "FP16") return (value) => fromFp16(toFp16(value));
    if (datatype === "BF16") return (value) => fromBf16(toBf16(value));
    return isFloat(datatype) ? (value) => value : Math.round;
}

function fill(values: Numbers, pixels: Pixels, settings: PictureSettings, channels: number, round: (value: number) => number): void {
    const area = pixels.width * pixels.height;
    const into = values as { [index: number]: number };
    for (let channel = 0; channel < channels; channel++) {
        const mean = settings.mean[channel] ?? settings.mean[0] ?? 0;
        const std = settings.std[channel] ?? settings.std[0] ?? 1;
        const table = Float64Array.from({ length: 256 }, (_, byte) => round(((byte * settings.scale) / 255 - mean) / std));
        const source = pixels.channels === 1 ? 0 : settings.colors === "BGR" && channel < 3 ? 2 - channel : channel;
        for (let at = 0; at < area; at++) {
            // A fourth channel is the opacity, which is full.
            const byte = source < pixels.channels ? pixels.data[at * pixels.channels + source]! : 255;
            into[settings.layout === "NCHW" ? channel * area + at : at * channels + channel] = table[byte]!;
        }
    }
}

/** A tensor that is a picture as RGBA, for showing it; values are stretched from their minimum to their maximum. */
export function tensorPixels(tensor: Tensor, shape: PictureShape, row = 0): { width: number; height: number; data: Uint8ClampedArray<ArrayBuffer> } {
    const { height, width, channels } = shape;
    const area = height * width;
    const all = tensor.values as Numbers;
    const values = all.subarray(row * area * channels, (row + 1) * area * channels);
    const [low, high] = rangeOf(tensor, values);
    const data = new Uint8ClampedArray(area * 4);
    const factor = 255 / (high - low || 1);
    for (let at = 0; at < area; at++) {
        for (let channel = 0; channel < 4; channel++) {
            const source = channels === 1 && channel < 3 ? 0 : channel;
            const index = shape.layout === "NCHW" ? source * area + at : at * channels + source;
            data[at * 4 + channel] = source < channels && channel < 3 ? (Number(values[index]) - low) * factor : 255;
        }
    }
    return { width, height, data };
}

/** 0 to 255 for bytes, 0 to 1 for numbers within it, otherwise what occurs. */
function rangeOf(tensor: Tensor, values: Numbers): [number, number] {
    if (tensor.datatype === "UINT8") return [0, 255];
    let low = Infinity;
    let high = -Infinity;
    for (const each of values) {
        const value = Number(each);
        if (value < low) low = value;
        if (value > high) high = value;
    }
    return low >= 0 && high <= 1 ? [0, 1] : [Number.isFinite(low) ? low : 0, Number.isFinite(high) ? high : 1];
}

/** How an output can be shown as a picture with its real shape. */
export function shownAsPicture(tensor: Tensor): PictureShape | undefined {
    return pictureShape({ name: tensor.name, datatype: tensor.datatype, shape: [1, ...tensor.shape.slice(-3)] });
}

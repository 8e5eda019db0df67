/** Which axes of an input are the height, the width and the channels of a picture, guessed from its shape. */

import type { InputSpec, TensorSpec } from "../wire/model";

export type Layout = "NCHW" | "NHWC";

export interface PictureShape {
    layout: Layout;
    /** 1 (gray), 3 or 4. */
    channels: number;
    /** -1 where any size is right. */
    height: number;
    width: number;
}

const MIN_SIDE = 4;
const CHANNELS = [3, 1, 4];
const NUMERIC = /^(UINT8|INT8|UINT16|INT32|FP16|BF16|FP32|FP64)$/;

/** How a tensor would be a picture; undefined if it cannot be one. `format` is the configuration's. */
export function pictureShape(tensor: TensorSpec, format = "FORMAT_NONE"): PictureShape | undefined {
    const inner = innerDims(tensor.shape);
    if (!inner || !NUMERIC.test(tensor.datatype)) return undefined;
    const first = channelsFirst(inner);
    const last = channelsLast(inner);
    if (format === "FORMAT_NHWC") return last ?? first;
    if (format === "FORMAT_NCHW") return first ?? last;
    if (first && last) return preferred(first, last);
    return first ?? last;
}

/** The three dimensions behind batch dimensions of 1 or -1. */
function innerDims(shape: readonly number[]): [number, number, number] | undefined {
    if (shape.length < 3 || shape.length > 4) return undefined;
    const outer = shape.slice(0, -3);
    if (outer.some((size) => size !== 1 && size !== -1)) return undefined;
    return shape.slice(-3) as [number, number, number];
}

function channelsFirst([channels, height, width]: [number, number, number]): PictureShape | undefined {
    return isChannels(channels) && isSide(height) && isSide(width) ? { layout: "NCHW", channels, height, width } : undefined;
}

function channelsLast([height, width, channels]: [number, number, number]): PictureShape | undefined {
    return isChannels(channels) && isSide(height) && isSide(width) ? { layout: "NHWC", channels, height, width } : undefined;
}

/** Both are possible, for example [4, 640, 3]: three channels are the likelier. */
function preferred(first: PictureShape, last: PictureShape): PictureShape {
    return CHANNELS.indexOf(last.channels) < CHANNELS.indexOf(first.channels) ? last : first;
}

function isChannels(size: number): boolean {
    return CHANNELS.includes(size);
}

function isSide(size: number): boolean {
    return size === -1 || size >= MIN_SIDE;
}

/** Whether an input takes files of pictures: BYTES of one element with a name that says so. */
export function takesPictureFile(input: InputSpec): boolean {
    return input.datatype === "BYTES" && /image|img|jpe?g|png|picture|photo/i.test(input.name);
}

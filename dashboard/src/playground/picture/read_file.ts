/** The pixels of a file, and files of pixels, by the browser. */

import type { Picture } from "../form/input_state";
import { InputProblem } from "../tensor/elements";
import { type Pixels, withoutAlpha } from "./resize";

const MAX_PIXELS = 50_000_000;
const MAX_BYTES = 64 << 20;

/** Decode a picture, upright, with its own colors. Rejects with InputProblem. */
export async function readPicture(file: File): Promise<Picture> {
    if (file.size > MAX_BYTES) throw new InputProblem(`'${file.name}' has ${Math.round(file.size / 1e6)} MB: choose a picture of at most 64 MB`);
    let bitmap: ImageBitmap;
    try {
        bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: "from-image" });
    } catch {
        throw new InputProblem(`the browser cannot read '${file.name}' as a picture: choose a JPEG, PNG, WebP or BMP`);
    }
    const { width, height } = bitmap;
    if (width * height > MAX_PIXELS) throw new InputProblem(`'${file.name}' has ${width} x ${height} pixels: at most ${MAX_PIXELS / 1e6} million`);
    const context = contextOf(width, height);
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    const { data } = context.getImageData(0, 0, width, height);
    let hasAlpha = false;
    for (let at = 3; at < data.length && !hasAlpha; at += 4) hasAlpha = data[at] !== 255;
    return { fileName: file.name, pixels: withoutAlpha(data, width, height), hasAlpha };
}

function contextOf(width: number, height: number): OffscreenCanvasRenderingContext2D {
    const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
    if (!context) throw new InputProblem("the browser gives no canvas for this picture: choose a smaller one");
    return context;
}

/** RGBA of pixels, for a canvas. */
export function toRgba({ width, height, channels, data }: Pixels): ImageData {
    const rgba = new Uint8ClampedArray(width * height * 4);
    for (let pixel = 0; pixel < width * height; pixel++) {
        for (let channel = 0; channel < 3; channel++) rgba[pixel * 4 + channel] = data[pixel * channels + (channels === 1 ? 0 : channel)]!;
        rgba[pixel * 4 + 3] = 255;
    }
    return new ImageData(rgba, width, height);
}

/** Pixels as a file in PNG. */
export async function toPng(pixels: Pixels): Promise<Blob> {
    const canvas = new OffscreenCanvas(pixels.width, pixels.height);
    canvas.getContext("2d")?.putImageData(toRgba(pixels), 0, 0);
    return canvas.convertToBlob({ type: "image/png" });
}

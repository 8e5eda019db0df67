/** Tensors as expressions of Python and numpy. */

import type { Tensor } from "../tensor/datatypes";
import { elementBytes } from "../tensor/datatypes";
import { shownNumber, textOf } from "../tensor/elements";
import { BODY_FILE, NUMPY_TYPES, type PictureSource } from "./code_request";

const WIDTH = 100;

/** A string, number, boolean, list or object as Python writes it. JSON's escapes of strings are those of Python. */
export function literal(value: unknown): string {
    if (value === true) return "True";
    if (value === false) return "False";
    if (value === null || value === undefined) return "None";
    if (typeof value === "bigint") return value.toString();
    if (typeof value === "number") return Number.isFinite(value) ? String(value) : `float("${value}")`;
    if (typeof value === "string") return JSON.stringify(value);
    if (Array.isArray(value)) return list(value.map(literal));
    const entries = Object.entries(value as object).filter(([, each]) => each !== undefined);
    return `{${entries.map(([key, each]) => `${JSON.stringify(key)}: ${literal(each)}`).join(", ")}}`;
}

/** A list, in several lines if it is long. */
export function list(items: readonly string[], margin = ""): string {
    if (items.join(", ").length <= WIDTH) return `[${items.join(", ")}]`;
    const lines = [`${margin}    `];
    for (const item of items) {
        if (lines.at(-1)!.length + item.length > WIDTH && lines.at(-1)!.trim()) lines.push(`${margin}    `);
        lines[lines.length - 1] += `${item}, `;
    }
    return `[\n${lines.map((line) => line.trimEnd()).join("\n")}\n${margin}]`;
}

/** A numpy array with the values of a tensor. */
export function arrayOf(tensor: Tensor): string {
    const shape = tensor.shape.length === 1 ? "" : `.reshape(${tuple(tensor.shape)})`;
    if (tensor.datatype === "BYTES") {
        return `np.array(${list(tensor.values.map(bytesLiteral))}, dtype=np.object_)${shape}`;
    }
    const { datatype } = tensor;
    const items = Array.from(tensor.values as ArrayLike<number | bigint>, (value) => {
        if (datatype === "BOOL") return value ? "True" : "False";
        if (typeof value === "number" && Number.isNaN(value)) return "np.nan";
        return shownNumber(value, datatype).replace("Infinity", "np.inf");
    });
    return `np.array(${list(items)}, dtype=np.${numpyType(tensor.datatype)})${shape}`;
}

function bytesLiteral(bytes: Uint8Array): string {
    const text = textOf(bytes);
    if (text !== undefined) return JSON.stringify(text);
    return `b"${Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}"`;
}

export function numpyType(datatype: Exclude<Tensor["datatype"], "BYTES">): string {
    const name = NUMPY_TYPES[datatype];
    return name === "bool" ? "bool_" : name;
}

export function tuple(shape: readonly number[]): string {
    return shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
}

/** An array of the bytes in `body`, which is the file of the request. */
export function arrayOfBody(tensor: Tensor, offset: number, bytes: number): string {
    const part = `body[${offset}:${offset + bytes}]`;
    const shape = `.reshape(${tuple(tensor.shape)})`;
    if (tensor.datatype === "BYTES") return `deserialize_bytes_tensor(${part})${shape}`;
    if (tensor.datatype === "BF16") return `deserialize_bf16_tensor(${part})${shape}`;
    const count = bytes / elementBytes(tensor.datatype);
    return `np.frombuffer(body, np.${numpyType(tensor.datatype)}, ${count}, ${offset})${shape}`;
}

export const READ_BODY = `body = open("${BODY_FILE}", "rb").read()`;

/** Lines that make `variable` from a file of a picture, with the numbers that the page sends. */
export function pictureLines(variable: string, tensor: Tensor, source: PictureSource): string[] {
    const { settings, channels, width, height, place } = source;
    const mode = settings.colors === "GRAY" || channels === 1 ? "L" : "RGB";
    const lines = [`picture = ImageOps.exif_transpose(Image.open(${JSON.stringify(source.fileName)}))`];
    if (source.hasAlpha) {
        lines.push('picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))');
    }
    lines.push(`picture = picture.convert("RGB")${mode === "L" ? '.convert("L")' : ""}`);
    if (settings.fit === "crop") {
        lines.push(
            `scale = min(picture.width / ${width}, picture.height / ${height})`,
            `crop_width, crop_height = int(${width} * scale + 0.5), int(${height} * scale + 0.5)`,
            "left, top = (picture.width - crop_width) // 2, (picture.height - crop_height) // 2",
            "picture = picture.crop((left, top, left + crop_width, top + crop_height))",
        );
    }
    if (settings.fit === "pad") {
        lines.push(
            `canvas = Image.new("${mode}", (${width}, ${height}))`,
            `scale = min(${width} / picture.width, ${height} / picture.height)`,
            "size = (max(1, int(picture.width * scale + 0.5)), max(1, int(picture.height * scale + 0.5)))",
            `canvas.paste(picture.resize(size, Image.Resampling.BILINEAR), ((${width} - size[0]) // 2, (${height} - size[1]) // 2))`,
            "picture = canvas",
        );
    } else if (place.width > 0) {
        lines.push(`picture = picture.resize((${width}, ${height}), Image.Resampling.BILINEAR)`);
    }
    lines.push(...normalizationLines(variable, tensor, source, mode));
    return lines;
}

function normalizationLines(variable: string, tensor: Tensor, { settings, channels }: PictureSource, mode: string): string[] {
    const dtype = numpyType(tensor.datatype as Exclude<Tensor["datatype"], "BYTES">);
    const isPlain = settings.scale === 255 && settings.mean.every((each) => each === 0) && settings.std.every((each) => each === 1);
    const lines = [`pixels = np.asarray(picture, np.${isPlain ? "uint8" : "float64"})`];
    if (mode === "L") lines.push(channels === 1 ? "pixels = pixels[:, :, np.newaxis]" : `pixels = np.repeat(pixels[:, :, np.newaxis], ${channels}, axis=2)`);
    if (settings.colors === "BGR" && mode === "RGB") lines.push("pixels = pixels[:, :, ::-1]  # BGR");
    if (channels === 4) lines.push(`pixels = np.concatenate([pixels[:, :, :3], np.full(pixels.shape[:2] + (1,), 255, pixels.dtype)], axis=2)`);
    if (!isPlain) {
        if (settings.scale === 1) lines.push("pixels = pixels / 255");
        const mean = numbers(settings.mean, channels);
        const std = numbers(settings.std, channels);
        if (mean !== "0" || std !== "1") lines.push(`pixels = (pixels - ${mean}) / ${std}`);
        if (dtype.includes("int")) lines.push("pixels = np.floor(pixels + 0.5)");
    }
    if (settings.layout === "NCHW") lines.push("pixels = pixels.transpose(2, 0, 1)");
    lines.push(`${variable} = np.ascontiguousarray(pixels.reshape(${tuple(tensor.shape)}), np.${dtype})`);
    return lines;
}

function numbers(values: readonly number[], channels: number): string {
    const all = Array.from({ length: channels }, (_, index) => values[index] ?? values[0]);
    return all.every((each) => each === all[0]) ? String(all[0]) : `np.array([${all.join(", ")}])`;
}

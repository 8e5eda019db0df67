/** How an output can be shown, the likeliest first. */

import type { PictureShape } from "../picture/layout";
import { shownAsPicture } from "../picture/to_tensor";
import type { Tensor } from "../tensor/datatypes";
import { textOf } from "../tensor/elements";
import { boxRows } from "./boxes";

export type ViewKind = "classes" | "largest" | "boxes" | "mask" | "picture" | "text" | "table" | "values";

export const VIEW_NAMES: Record<ViewKind, string> = {
    classes: "Classes",
    largest: "Largest",
    boxes: "Boxes",
    mask: "Mask",
    picture: "Picture",
    text: "Text",
    table: "Table",
    values: "Distribution",
};

/** Tensors of more elements than this are never a table at first. */
const MANY = 1000;
const MIN_MASK_SIDE = 8;
const MAX_PICTURE_PIXELS = 16_000_000;

/** Views of an output; `isClassified` if its classes were asked for, `hasPicture` if an input is one. */
export function viewsFor(tensor: Tensor, isClassified: boolean, hasPicture: boolean): ViewKind[] {
    if (tensor.datatype === "BYTES") return isClassified && classRows(tensor) ? ["classes", "text"] : ["text", "table"];
    const count = tensor.values.length;
    if (!count) return ["table"];
    const views: ViewKind[] = [];
    if (hasPicture && boxRows(tensor) && /box|bbox|rect|quad|det|poly/i.test(tensor.name)) views.push("boxes");
    const shape = pictureOf(tensor);
    const isMask = maskSize(tensor) !== undefined;
    if (isMask) views.push("mask");
    if (shape && !(isMask && shape.channels === 1 && hasPicture)) views.push("picture");
    const isVector = tensor.shape.slice(0, -1).every((size) => size === 1) && count > 1;
    if (count > MANY) views.push("values");
    if (isVector && count >= 10 && count <= 100_000) views.push("largest");
    views.push("table");
    if (!views.includes("largest") && isVector) views.push("largest");
    if (!views.includes("values") && count > 8) views.push("values");
    if (hasPicture && !views.includes("boxes") && boxRows(tensor)) views.push("boxes");
    return views;
}

/** How an output is a picture, if it is none of too many pixels. */
export function pictureOf(tensor: Tensor): PictureShape | undefined {
    if (tensor.datatype === "BYTES" || tensor.datatype === "INT64" || tensor.datatype === "UINT64") return undefined;
    const shape = shownAsPicture(tensor);
    const isSmall = !shape || shape.height < MIN_MASK_SIDE || shape.width < MIN_MASK_SIDE || shape.height * shape.width > MAX_PICTURE_PIXELS;
    return isSmall ? undefined : shape;
}

/** Height and width of an output with one value for each place, `[..., H, W]` or `[..., H, W, 1]`. */
export function maskSize(tensor: Tensor): { height: number; width: number } | undefined {
    if (tensor.datatype === "BYTES") return undefined;
    let shape = tensor.shape;
    if (shape.length >= 3 && shape.at(-1) === 1) shape = shape.slice(0, -1);
    const [height = 0, width = 0] = shape.slice(-2);
    const isSingle = shape.slice(0, -2).every((size) => size === 1);
    const isArea = height >= MIN_MASK_SIDE && width >= MIN_MASK_SIDE && height * width <= MAX_PICTURE_PIXELS;
    return isSingle && isArea && height / width < 8 && width / height < 8 ? { height, width } : undefined;
}

export interface ClassRow {
    value: number;
    index: number;
    label: string;
}

/** The classes `value:index[:label]` of each row; undefined if an element has another form. */
export function classRows(tensor: Tensor): ClassRow[][] | undefined {
    if (tensor.datatype !== "BYTES") return undefined;
    const found: ClassRow[] = [];
    for (const element of tensor.values) {
        const parts = /^([^:]*):(\d+)(?::([^]*))?$/.exec(textOf(element) ?? "");
        if (!parts || parts[1] === "") return undefined;
        found.push({ value: Number(parts[1]), index: Number(parts[2]), label: parts[3] ?? "" });
    }
    const width = tensor.shape.at(-1) ?? found.length;
    const rows: ClassRow[][] = [];
    for (let at = 0; at < found.length; at += width) rows.push(found.slice(at, at + width));
    return rows;
}

/** The rows with names for the classes that have none. */
export function named(rows: ClassRow[], names: readonly string[]): ClassRow[] {
    return rows.map((row) => (row.label ? row : { ...row, label: names[row.index] ?? "" }));
}

/** Whether scores are shares of one: then a bar is as long as its share. */
export function areShares(values: readonly number[]): boolean {
    return values.every((value) => value >= 0 && value <= 1.0001);
}

/** Lengths of bars from 0 to 1. */
export function barLengths(values: readonly number[]): number[] {
    if (areShares(values)) return values.map((value) => Math.min(1, value));
    const finite = values.filter(Number.isFinite);
    const high = Math.max(...finite, 0);
    const low = Math.min(...finite, 0);
    return values.map((value) => (Number.isFinite(value) ? (value - low) / (high - low || 1) : value > 0 ? 1 : 0));
}

/** A text as JSON with indents if it is an object or a list, otherwise as it is. */
export function prettyText(text: string): string {
    if (!/^\s*[[{]/.test(text) || text.length > 200_000) return text;
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text; // It only begins like JSON.
    }
}

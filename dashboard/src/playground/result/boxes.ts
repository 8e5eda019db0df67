/** Boxes and other polygons in outputs, for drawing over the picture. */

import type { Numbers, Tensor } from "../tensor/datatypes";
import { shownBytes } from "../tensor/elements";

export type BoxFormat = "xyxy" | "xywh" | "cxcywh" | "yxyx";
export const BOX_FORMATS: Record<BoxFormat, string> = {
    xyxy: "left, top, right, bottom",
    xywh: "left, top, width, height",
    cxcywh: "center x, center y, width, height",
    yxyx: "top, left, bottom, right",
};

export interface Box {
    /** Corners in pixels of the picture. */
    points: [number, number][];
    score?: number;
    caption: string;
}

export const MAX_BOXES = 300;

/** Rows of numbers that can be boxes: `width` numbers each, of which 4 (a box) or 8 (a polygon) are places. */
export function boxRows(tensor: Tensor): { count: number; width: number; isPolygon: boolean } | undefined {
    if (tensor.datatype === "BYTES" || tensor.datatype === "BOOL") return undefined;
    const last = tensor.shape.at(-1) ?? 0;
    const isPolygon = (last === 2 && tensor.shape.at(-2) === 4) || last === 8;
    const width = last === 2 && isPolygon ? 8 : last;
    if (!isPolygon && (last < 4 || last > 7)) return undefined;
    return { count: tensor.values.length / width, width, isPolygon };
}

/** The format that the numbers allow: a right edge is never left of the left one. */
export function guessFormat(tensor: Tensor): BoxFormat {
    const rows = boxRows(tensor);
    if (!rows || rows.isPolygon) return "xyxy";
    const values = tensor.values as Numbers;
    for (let row = 0; row < Math.min(rows.count, MAX_BOXES); row++) {
        const [a, b, c, d] = [0, 1, 2, 3].map((index) => Number(values[row * rows.width + index])) as [number, number, number, number];
        if (c < a || d < b) return "xywh";
    }
    return "xyxy";
}

/** Whether all places are shares of the picture's size. */
export function areNormalized(tensor: Tensor): boolean {
    const rows = boxRows(tensor);
    if (!rows) return false;
    const values = tensor.values as Numbers;
    const places = rows.isPolygon ? 8 : 4;
    for (let row = 0; row < Math.min(rows.count, MAX_BOXES); row++) {
        for (let index = 0; index < places; index++) if (Math.abs(Number(values[row * rows.width + index])) > 1.5) return false;
    }
    return true;
}

/** Boxes in pixels of a picture; scores and captions come from the row, or from other outputs with as many elements. */
export function boxesOf(
    tensor: Tensor, others: readonly Tensor[], format: BoxFormat, isNormalized: boolean, size: { width: number; height: number },
): Box[] {
    const rows = boxRows(tensor);
    if (!rows) return [];
    const values = tensor.values as Numbers;
    const beside = others.filter((each) => each.name !== tensor.name && each.values.length === rows.count);
    const scores = beside.find((each) => /^FP|^BF/.test(each.datatype));
    const captions = beside.filter((each) => each !== scores);
    const [x, y] = isNormalized ? [size.width, size.height] : [1, 1];
    const boxes: Box[] = [];
    for (let row = 0; row < rows.count; row++) {
        const numbers = Array.from({ length: rows.width }, (_, index) => Number(values[row * rows.width + index]));
        const points = (rows.isPolygon ? polygon(numbers) : corners(numbers, format)).map(([a, b]): [number, number] => [a * x, b * y]);
        if (!points.flat().every(Number.isFinite)) continue;
        const score = scores ? Number(scores.values[row]) : rows.isPolygon ? undefined : numbers[4];
        const own = rows.isPolygon ? [] : numbers.slice(5).map(String);
        const words = [...captions.map((each) => captionOf(each, row)), ...own];
        boxes.push({ points, caption: words.join(" "), ...(score === undefined ? {} : { score }) });
    }
    return boxes;
}

function captionOf(tensor: Tensor, row: number): string {
    if (tensor.datatype === "BYTES") return shownBytes(tensor.values[row]!).slice(0, 80);
    return String(tensor.values[row]);
}

function polygon(numbers: readonly number[]): [number, number][] {
    return [0, 2, 4, 6].map((index) => [numbers[index]!, numbers[index + 1]!]);
}

function corners([a = 0, b = 0, c = 0, d = 0]: readonly number[], format: BoxFormat): [number, number][] {
    const [left, top, right, bottom] = {
        xyxy: [a, b, c, d],
        xywh: [a, b, a + c, b + d],
        cxcywh: [a - c / 2, b - d / 2, a + c / 2, b + d / 2],
        yxyx: [b, a, d, c],
    }[format] as [number, number, number, number];
    return [[left, top], [right, top], [right, bottom], [left, bottom]];
}

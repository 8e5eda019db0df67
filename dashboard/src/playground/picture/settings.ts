/** How the pixels of a picture become the numbers of an input; remembered for each model. */

import type { InputSpec, ModelDescription } from "../wire/model";
import { type Layout, pictureShape } from "./layout";
import type { Fit } from "./resize";

export type Colors = "RGB" | "BGR" | "GRAY";

export interface PictureSettings {
    layout: Layout;
    colors: Colors;
    fit: Fit;
    /** A pixel of 255 is this number before mean and deviation. */
    scale: 1 | 255;
    /** A number for each channel, or one for all. */
    mean: number[];
    std: number[];
    /** For inputs of any size. */
    width: number;
    height: number;
}

export const PRESETS: Record<string, Pick<PictureSettings, "scale" | "mean" | "std">> = {
    "0 to 1": { scale: 1, mean: [0], std: [1] },
    "0 to 255": { scale: 255, mean: [0], std: [1] },
    "−1 to 1": { scale: 1, mean: [0.5], std: [0.5] },
    ImageNet: { scale: 1, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] },
};

/** The name of the preset that settings are; undefined for others. */
export function presetOf(settings: PictureSettings): string | undefined {
    const key = (each: Pick<PictureSettings, "scale" | "mean" | "std">) => JSON.stringify([each.scale, each.mean, each.std]);
    return Object.keys(PRESETS).find((name) => key(PRESETS[name]!) === key(settings));
}

/** Settings for an input that nobody has set yet: the owner's `pictures`, otherwise a guess. */
export function defaultSettings(input: InputSpec, model: ModelDescription): PictureSettings {
    const shape = pictureShape(input, input.format);
    const isInteger = /INT/.test(input.datatype);
    const settings: PictureSettings = {
        layout: shape?.layout ?? "NCHW",
        colors: shape?.channels === 1 ? "GRAY" : "RGB",
        fit: "crop",
        ...(isInteger ? PRESETS["0 to 255"]! : PRESETS["0 to 1"]!),
        width: 0,
        height: 0,
    };
    const [name, ...words] = model.pictures.split(",").map((word) => word.trim());
    if (name !== input.name) return settings;
    for (const word of words) {
        const [key, value = ""] = word.split("=");
        if (key === "resize" && (value === "stretch" || value === "crop")) settings.fit = value;
        else if (key === "scale") settings.scale = value === "255" ? 255 : 1;
        else if (key === "mean") settings.mean = value.split("/").map(Number);
        else if (key === "std") settings.std = value.split("/").map(Number);
        else if (key === "size") [settings.height = 0, settings.width = 0] = value.split("x").map(Number);
    }
    return settings;
}

/** Remembered settings over the defaults; what is no setting is left out, because other pages may write there too. */
export function restored(defaults: PictureSettings, text: string | null): PictureSettings {
    let stored: Partial<Record<keyof PictureSettings, unknown>>;
    try {
        stored = JSON.parse(text ?? "{}") as typeof stored;
    } catch {
        return defaults;
    }
    if (typeof stored !== "object" || stored === null) return defaults;
    const settings = { ...defaults };
    if (stored.layout === "NCHW" || stored.layout === "NHWC") settings.layout = stored.layout;
    if (stored.colors === "RGB" || stored.colors === "BGR" || stored.colors === "GRAY") settings.colors = stored.colors;
    if (stored.fit === "stretch" || stored.fit === "crop" || stored.fit === "pad") settings.fit = stored.fit;
    if (stored.scale === 1 || stored.scale === 255) settings.scale = stored.scale;
    if (isNumbers(stored.mean)) settings.mean = stored.mean;
    if (isNumbers(stored.std) && stored.std.every((each) => each !== 0)) settings.std = stored.std;
    if (isSide(stored.width)) settings.width = stored.width;
    if (isSide(stored.height)) settings.height = stored.height;
    return settings;
}

export const MAX_SIDE = 4096;

export function isSide(value: unknown): value is number {
    return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_SIDE;
}

function isNumbers(value: unknown): value is number[] {
    return Array.isArray(value) && value.length > 0 && value.length <= 4 && value.every((each) => Number.isFinite(each));
}

export function settingsKey(model: string, input: string): string {
    return `naiad.playground.picture.${JSON.stringify([model, input])}`;
}

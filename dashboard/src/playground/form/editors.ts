/** Which editors an input can have, and which it begins with. */

import { elementCount } from "../tensor/datatypes";
import { pictureShape, takesPictureFile } from "../picture/layout";
import type { InputSpec } from "../wire/model";

export type EditorKind = "values" | "text" | "json" | "picture" | "audio" | "file" | "fill";

export const EDITOR_NAMES: Record<EditorKind, string> = {
    values: "Values",
    text: "Text",
    json: "JSON",
    picture: "Picture",
    audio: "Sound",
    file: "File",
    fill: "Generated",
};

/** More values than this are no fields of a form. */
export const MAX_FIELDS = 64;
const MIN_SOUND = 256;
const SOUND_NAMES = /audio|wav|sound|speech|pcm|chunk|signal|samples/i;
const SOUND_TYPES = /^(FP32|FP16|FP64|INT16)$/;

/** Editors for an input, the likeliest first. */
export function editorsFor(input: InputSpec): EditorKind[] {
    if (input.datatype === "BYTES") return takesPictureFile(input) ? ["file", "text", "json"] : ["text", "json", "file"];
    const kinds: EditorKind[] = [];
    const count = elementCount(input.shape.map((size) => (size < 0 ? 1 : size)));
    if (pictureShape(input, input.format)) kinds.push("picture");
    if (takesSound(input) && SOUND_NAMES.test(input.name)) kinds.push("audio");
    if (count <= MAX_FIELDS) kinds.push("values");
    if (!kinds.includes("values")) kinds.push("fill");
    kinds.push("json");
    if (kinds.includes("values")) kinds.push("fill");
    if (takesSound(input) && !kinds.includes("audio")) kinds.push("audio");
    return kinds;
}

/** A row of samples: of a free length if the name says so, or of a length that few tables have. */
export function takesSound(input: InputSpec): boolean {
    const last = input.shape.at(-1) ?? 0;
    if (!SOUND_TYPES.test(input.datatype) || input.shape.slice(0, -1).some((size) => size !== 1 && size !== -1)) return false;
    return last >= MIN_SOUND || (last === -1 && SOUND_NAMES.test(input.name));
}

/** The free dimensions of an input for which a person has to choose a size. */
export function freeAxes(input: InputSpec): number[] {
    return input.shape.flatMap((size, axis) => (size < 0 ? [axis] : []));
}

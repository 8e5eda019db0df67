/** Names of classes from a file of the user, for models without labels; the browser remembers those of the last models. */

import { type Signal, signal } from "@preact/signals";
import { remember, remembered } from "./remembered";
import { InputProblem } from "./tensor/elements";

export const MAX_FILE_BYTES = 1 << 20;
export const MAX_LABELS = 100_000;
/** Models whose labels are remembered, and the characters of them all: browsers store about 5 million for a page. */
export const MAX_MODELS = 8;
export const MAX_STORED = 2 << 20;
const MAX_LABEL = 200;
const KEY = "naiad.playground.labels";

export class ClassLabels {
    /** One for each class, in the order of the classes; empty without a file. */
    readonly names: Signal<readonly string[]>;
    readonly problem = signal("");

    constructor(private readonly model: string) {
        this.names = signal(labelsIn(entries().find(([name]) => name === model)?.[1] ?? ""));
    }

    /** Take the lines of a file; a file that is none of labels is refused, and those before stay. */
    async load(file: File): Promise<void> {
        this.problem.value = "";
        try {
            if (file.size > MAX_FILE_BYTES) throw new InputProblem(`'${file.name}' has ${Math.ceil(file.size / 1e6)} MB: choose a text of at most 1 MB with one label per line`);
            this.set(parseLabels(await file.text(), file.name));
        } catch (error) {
            this.problem.value = error instanceof InputProblem ? error.message : `the browser cannot read '${file.name}'`;
        }
    }

    remove(): void {
        this.problem.value = "";
        this.set([]);
    }

    private set(names: readonly string[]): void {
        this.names.value = names;
        const others = entries().filter(([name]) => name !== this.model);
        remember(KEY, JSON.stringify(withinBounds(names.length ? [[this.model, names.join("\n")], ...others] : others)));
    }
}

/** The labels of a text, one per line. Throws InputProblem. */
export function parseLabels(text: string, fileName: string): string[] {
    if (/[\0\uFFFD]/.test(text)) throw new InputProblem(`'${fileName}' is no text in UTF-8: choose a file with one label per line`);
    const names = labelsIn(text);
    if (!names.length) throw new InputProblem(`'${fileName}' has no labels: write one per line`);
    if (names.length > MAX_LABELS) throw new InputProblem(`'${fileName}' has ${names.length.toLocaleString("en")} lines: at most ${MAX_LABELS.toLocaleString("en")}`);
    return names;
}

/** The lines of a text; an empty line within is a class without a name. */
function labelsIn(text: string): string[] {
    const trimmed = text.replace(/^\uFEFF/, "").trimEnd();
    return trimmed ? trimmed.split(/\r\n|\n|\r/).map((line) => line.trim().slice(0, MAX_LABEL)) : [];
}

/** Models with their labels, the newest first. What is none is left out, because other pages may write there too. */
function entries(): [string, string][] {
    let stored: unknown;
    try {
        stored = JSON.parse(remembered(KEY) ?? "[]");
    } catch {
        return [];
    }
    if (!Array.isArray(stored)) return [];
    const isEntry = (each: unknown): each is [string, string] => Array.isArray(each) && each.length === 2 && each.every((part) => typeof part === "string");
    return withinBounds(stored.filter(isEntry));
}

function withinBounds(newestFirst: [string, string][]): [string, string][] {
    let length = 0;
    return newestFirst.slice(0, MAX_MODELS).filter(([name, labels]) => (length += name.length + labels.length) <= MAX_STORED);
}

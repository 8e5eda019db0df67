/** What a person has entered for one input, and the tensor that it gives. */

import { type Signal, signal } from "@preact/signals";
import type { PictureSource } from "../code/code_request";
import { channelCount, pictureTensor, targetSize } from "../picture/to_tensor";
import { type Pixels, placement } from "../picture/resize";
import { type PictureSettings, defaultSettings, restored, settingsKey } from "../picture/settings";
import { type Tensor, elementCount, makeNumbers, tensorBytes, tensorOf } from "../tensor/datatypes";
import { InputProblem, shownElement, tensorFromJson, tensorFromTexts } from "../tensor/elements";
import { remember, remembered } from "../remembered";
import type { InputSpec, ModelDescription } from "../wire/model";
import { type EditorKind, MAX_FIELDS, editorsFor } from "./editors";
import { type Fill, exampleShape, generated } from "./examples";

export interface Picture {
    fileName: string;
    pixels: Pixels;
    hasAlpha: boolean;
}

export interface Sound {
    name: string;
    rate: number;
    samples: Float32Array;
}

export interface BytesFile {
    name: string;
    bytes: Uint8Array;
}

export class InputState {
    readonly kinds: EditorKind[];
    readonly kind: Signal<EditorKind>;
    /** Sent at all; always true unless the input is optional. */
    readonly isSent: Signal<boolean>;
    /** The shape for editors that do not decide it themselves. */
    readonly shape: Signal<number[]>;
    /** One text for each element: fields and text areas. */
    readonly texts = signal<string[]>([]);
    readonly json = signal("");
    readonly fill = signal<Fill>("random");
    readonly picture = signal<Picture | undefined>(undefined);
    readonly settings: Signal<PictureSettings>;
    readonly sound = signal<Sound | undefined>(undefined);
    readonly soundRate = signal(16_000);
    readonly file = signal<BytesFile | undefined>(undefined);
    /** Set when a request could not be made of it. */
    readonly problem = signal("");
    /** The generated values, so that what is sent is what is copied. */
    private made: Tensor | undefined;

    constructor(readonly spec: InputSpec, readonly model: ModelDescription) {
        this.kinds = editorsFor(spec);
        this.kind = signal(this.kinds[0]!);
        this.isSent = signal(!spec.isOptional);
        this.shape = signal(exampleShape(spec, model.isBatched));
        this.settings = signal(restored(defaultSettings(spec, model), remembered(settingsKey(model.name, spec.name))));
        this.resizeTexts();
    }

    setShape(shape: number[]): void {
        this.shape.value = shape;
        this.made = undefined;
        this.resizeTexts();
    }

    private resizeTexts(): void {
        const count = Math.min(elementCount(this.shape.value), MAX_FIELDS);
        const blank = this.spec.datatype === "BYTES" ? "" : "0";
        this.texts.value = Array.from({ length: count }, (_, index) => this.texts.value[index] ?? blank);
    }

    setSettings(change: Partial<PictureSettings>): void {
        this.settings.value = { ...this.settings.value, ...change };
        remember(settingsKey(this.model.name, this.spec.name), JSON.stringify(this.settings.value));
    }

    setFill(fill: Fill): void {
        this.fill.value = fill;
        this.made = undefined;
    }

    /** Put values into the editor that shows them: fields, JSON or generated ones. */
    showTensor(tensor: Tensor, fill: Fill): void {
        this.setShape(tensor.shape);
        this.fill.value = fill;
        this.made = tensor;
        const count = elementCount(tensor.shape);
        if (count > MAX_FIELDS || (this.kind.value !== "values" && this.kind.value !== "text")) {
            this.kind.value = this.kinds.includes("fill") ? "fill" : this.kind.value;
        }
        if (count <= MAX_FIELDS) this.texts.value = Array.from({ length: count }, (_, index) => shownElement(tensor, index));
    }

    /** The tensor of what is entered. Throws InputProblem. */
    tensor(): Tensor {
        const { name, datatype } = this.spec;
        switch (this.kind.value) {
            case "values":
            case "text":
                return tensorFromTexts(name, datatype, this.shape.value, this.texts.value);
            case "json":
                return tensorFromJson(name, datatype, this.spec.shape, this.json.value);
            case "fill":
                return (this.made ??= generated(this.spec, this.shape.value, this.fill.value));
            case "picture":
                return this.prepared().tensor;
            case "audio":
                return this.soundTensor();
            case "file":
                if (!this.file.value) throw new InputProblem("choose a file");
                return tensorOf(name, "BYTES", this.spec.shape.map((size) => Math.abs(size)), [this.file.value.bytes]);
        }
    }

    private prepared(): { tensor: Tensor; shown: Pixels } {
        if (!this.picture.value) throw new InputProblem("choose a picture, drop one here, or paste one");
        return pictureTensor(this.spec, this.settings.value, this.picture.value.pixels);
    }

    /** How much memory what is entered takes, nearly. */
    heldBytes(): number {
        const textLength = this.texts.peek().reduce((sum, text) => sum + text.length, this.json.peek().length);
        const files = [this.picture.peek()?.pixels.data, this.sound.peek()?.samples, this.file.peek()?.bytes];
        const madeBytes = this.made ? tensorBytes(this.made) : 0;
        return files.reduce((sum, file) => sum + (file?.byteLength ?? 0), 2 * textLength + madeBytes);
    }

    /** What the model sees of the picture; undefined without one. */
    seenPicture(): Pixels | undefined {
        return this.picture.value && this.prepared().shown;
    }

    /** How the copied Python code makes the same tensor; undefined for other editors. */
    pictureSource(): PictureSource | undefined {
        const picture = this.picture.value;
        if (this.kind.value !== "picture" || !picture || !this.isSent.value) return undefined;
        const settings = this.settings.value;
        const { width, height } = targetSize(this.spec, settings, picture.pixels);
        const { place } = placement(settings.fit, picture.pixels, { width, height });
        return { fileName: picture.fileName, settings, channels: channelCount(this.spec, settings), width, height, place, hasAlpha: picture.hasAlpha };
    }

    private soundTensor(): Tensor {
        const { name, datatype, shape } = this.spec;
        const sound = this.sound.value;
        if (!sound) throw new InputProblem("choose a file with sound, or record some");
        const last = shape.at(-1) ?? -1;
        const length = last > 0 ? last : sound.samples.length;
        const values = makeNumbers(datatype as Exclude<Tensor["datatype"], "BYTES">, length) as Float32Array;
        const factor = datatype === "INT16" ? 32767 : 1;
        for (let index = 0; index < Math.min(length, sound.samples.length); index++) values[index] = sound.samples[index]! * factor;
        return tensorOf(name, datatype, [...shape.slice(0, -1).map(() => 1), length], values);
    }
}

/** The form of a model: its inputs or its rows, what is asked for, and the call that it gives. */

import { type Signal, signal } from "@preact/signals";
import type { PictureSource } from "../code/code_request";
import { InputProblem } from "../tensor/elements";
import type { Tensor } from "../tensor/datatypes";
import type { InferCall } from "../wire/infer_body";
import type { ModelDescription, OutputSpec, WarmupExample } from "../wire/model";
import { parseExact } from "../tensor/json";
import { columnsOf, parseCsv, tableTensors, takesRows } from "./csv";
import { exampleShape, generated } from "./examples";
import { InputState } from "./input_state";
import { examplePicture } from "../picture/example_picture";

export type Source = "inputs" | "rows";

const MAX_CLASSES = 10_000;

export class FormState {
    readonly inputs: InputState[];
    readonly source = signal<Source>("inputs");
    readonly rows = signal("");
    readonly rowsProblem = signal("");
    /** How many classes are asked for, by output; 0 for the values. */
    readonly classes: Map<string, Signal<number>>;
    readonly parameters = signal("");
    readonly parametersProblem = signal("");
    readonly sequenceId = signal(String(1 + Math.floor(Math.random() * 1e6)));
    readonly isSequenceStart = signal(true);
    readonly isSequenceEnd = signal(false);
    readonly isStream: Signal<boolean>;
    /** A chosen picture is sent at once. */
    readonly isEager = signal(true);

    constructor(readonly model: ModelDescription) {
        this.inputs = model.inputs.map((spec) => new InputState(spec, model));
        this.isStream = signal(model.isDecoupled);
        this.classes = new Map(model.outputs.map((output) => [output.name, signal(this.expectsClasses(output) ? 5 : 0)]));
        if (model.features.names.length) this.source.value = "rows";
        this.rows.value = takesRows(model) ? `${columnsOf(model).map(csvField).join(",")}\n` : "";
    }

    /** Whether an output is a score for each class: it has labels, or it is a long vector that a picture gives. */
    private expectsClasses(output: OutputSpec): boolean {
        if (this.model.isDecoupled || !canClassify(output)) return false;
        const size = output.shape.at(-1) ?? -1;
        const isVector = output.shape.slice(0, -1).every((each) => each === 1 || each === -1) && size >= 10;
        return output.hasLabels || (isVector && this.inputs.some((input) => input.kinds[0] === "picture"));
    }

    /** The call of what is entered; problems are shown at their fields unless `isQuiet`. Throws InputProblem. */
    call(id: string, isQuiet = false): InferCall {
        const outputs = this.model.outputs;
        const classCounts = outputs.map((output) => (this.isStream.value ? 0 : (this.classes.get(output.name)?.value ?? 0)));
        const inputs = this.source.value === "rows" ? this.rowTensors(isQuiet) : this.inputTensors(isQuiet);
        return {
            id,
            inputs,
            outputs: classCounts.some(Boolean)
                ? outputs.map(({ name }, index) => ({ name, ...(classCounts[index] ? { classCount: classCounts[index] } : {}) }))
                : [],
            parameters: { ...this.sequenceParameters(), ...this.otherParameters(isQuiet) },
            isStream: this.isStream.value,
            isAnswerBinary: true,
        };
    }

    private inputTensors(isQuiet: boolean): Tensor[] {
        let first: InputProblem | undefined;
        const tensors: Tensor[] = [];
        for (const input of this.inputs) {
            if (!isQuiet) input.problem.value = "";
            if (!input.isSent.value) continue;
            try {
                tensors.push(input.tensor());
            } catch (error) {
                if (!(error instanceof InputProblem)) throw error;
                if (!isQuiet) input.problem.value = error.message;
                first ??= new InputProblem(`${input.spec.name}: ${error.message}`);
            }
        }
        if (first) throw first;
        return tensors;
    }

    private rowTensors(isQuiet: boolean): Tensor[] {
        if (!isQuiet) this.rowsProblem.value = "";
        try {
            return tableTensors(this.model, parseCsv(this.rows.value));
        } catch (error) {
            if (!isQuiet && error instanceof InputProblem) this.rowsProblem.value = error.message;
            throw error;
        }
    }

    private sequenceParameters(): Record<string, unknown> {
        if (!this.model.isSequence) return {};
        const text = this.sequenceId.value.trim();
        if (!text) throw new InputProblem("the sequence needs an id: write a number or a name");
        const id = /^\d{1,20}$/.test(text) ? BigInt(text) : text;
        return {
            sequence_id: typeof id === "bigint" && id < BigInt(Number.MAX_SAFE_INTEGER) ? Number(id) : id,
            sequence_start: this.isSequenceStart.value,
            sequence_end: this.isSequenceEnd.value,
        };
    }

    private otherParameters(isQuiet: boolean): Record<string, unknown> {
        if (!isQuiet) this.parametersProblem.value = "";
        const text = this.parameters.value.trim();
        const streamed = this.isStream.value ? { json_nan: "null" } : {};
        if (!text) return streamed;
        try {
            const value = parseExact(text);
            if (typeof value === "object" && value !== null && !Array.isArray(value)) return { ...streamed, ...value };
            throw new Error("not an object");
        } catch (error) {
            const message = `parameters are an object in JSON, such as {"priority": 1}: ${(error as Error).message}`;
            if (!isQuiet) this.parametersProblem.value = message;
            throw new InputProblem(message);
        }
    }

    /** The next request of a sequence is not its first, and behind the last one a new sequence begins. */
    sequenceAnswered(): void {
        if (!this.model.isSequence) return;
        if (this.isSequenceEnd.value) {
            this.isSequenceEnd.value = false;
            this.isSequenceStart.value = true;
            this.sequenceId.value = String(1 + Math.floor(Math.random() * 1e6));
        } else {
            this.isSequenceStart.value = false;
        }
    }

    pictures(): ReadonlyMap<string, PictureSource> {
        const found = new Map<string, PictureSource>();
        if (this.source.value === "rows") return found;
        for (const input of this.inputs) {
            const source = input.pictureSource();
            if (source) found.set(input.spec.name, source);
        }
        return found;
    }

    /** How much memory what is entered takes, nearly. */
    heldBytes(): number {
        return this.inputs.reduce((sum, input) => sum + input.heldBytes(), 2 * (this.rows.peek().length + this.parameters.peek().length));
    }

    /** The picture over which boxes and masks are drawn. */
    pictureInput(): InputState | undefined {
        if (this.source.value === "rows") return undefined;
        return this.inputs.find((input) => input.kind.value === "picture" && input.picture.value);
    }

    /** Fill in a sample of `model_warmup`, or values that the model accepts. */
    fillExample(warmup?: WarmupExample): void {
        if (this.source.value === "rows" && !warmup) return this.fillRows();
        this.source.value = "inputs";
        for (const input of this.inputs) {
            input.problem.value = "";
            const given = warmup?.inputs.find((each) => each.name === input.spec.name);
            if (warmup && !given) {
                input.isSent.value = !input.spec.isOptional;
                continue;
            }
            const { spec } = input;
            if (given) {
                input.isSent.value = true;
                const shape = given.shape.map((size) => (size < 0 ? 1 : size));
                input.kind.value = input.kinds.includes("values") ? "values" : spec.datatype === "BYTES" ? "text" : "fill";
                input.showTensor(generated(spec, shape, given.fill), given.fill);
            } else if (input.kind.value === "picture") {
                input.picture.value ??= examplePicture();
            } else if (input.kind.value === "audio" || input.kind.value === "file") {
                input.kind.value = spec.datatype === "BYTES" ? "text" : "fill";
                input.showTensor(generated(spec, exampleShape(spec, this.model.isBatched), "random"), "random");
            } else {
                if (input.kind.value === "json") input.kind.value = input.kinds.find((kind) => kind !== "json" && kind !== "picture") ?? "json";
                input.showTensor(generated(spec, input.shape.value, "random"), "random");
            }
        }
    }

    private fillRows(): void {
        const columns = columnsOf(this.model);
        const { categories } = this.model.features;
        const line = columns.map((name) => {
            const known = categories[name];
            if (known?.length) return csvField(String(known[0]));
            const spec = this.model.inputs.find((input) => input.name === name);
            if (spec?.datatype === "BYTES") return "example";
            return spec && /INT|BOOL/.test(spec.datatype) ? "1" : String(Math.round(Math.random() * 1000) / 100);
        });
        this.rows.value = `${columns.map(csvField).join(",")}\n${line.join(",")}\n`;
    }
}

/** Whether the server can say the largest values of an output with their labels. */
export function canClassify(output: OutputSpec): boolean {
    const size = output.shape.at(-1) ?? -1;
    return /^(FP32|FP64|U?INT\d+)$/.test(output.datatype) && (output.hasLabels || size === -1 || (size > 1 && size <= MAX_CLASSES));
}

function csvField(text: string): string {
    return /[",;\n\r\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

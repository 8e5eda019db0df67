/** What a form needs to know of a model, from its metadata and its configuration. */

import { type Datatype, isDatatype } from "../tensor/datatypes";

/** The responses of `v2/models/NAME` and `v2/models/NAME/config`, as far as the playground reads them. */
export interface Metadata {
    name: string;
    versions?: string[];
    platform?: string;
    inputs?: { name: string; datatype: string; shape: (number | string)[] }[];
    outputs?: { name: string; datatype: string; shape: (number | string)[] }[];
}

export interface Config {
    max_batch_size?: number;
    input?: { name: string; format?: string; optional?: boolean }[];
    output?: { name: string; label_filename?: string }[];
    sequence_batching?: object | null;
    model_transaction_policy?: { decoupled?: boolean };
    parameters?: Record<string, { string_value?: string }>;
    model_warmup?: WarmupSample[];
}

interface WarmupSample {
    name?: string;
    batch_size?: number;
    inputs?: Record<string, WarmupInput>;
}

interface WarmupInput {
    data_type?: string;
    dims?: (number | string)[];
    zero_data?: boolean;
    random_data?: boolean;
    input_data_file?: string;
}

export interface TensorSpec {
    name: string;
    datatype: Datatype;
    /** With the batch dimension, if there is one; -1 where any size is right. */
    shape: number[];
}

export interface InputSpec extends TensorSpec {
    isOptional: boolean;
    /** FORMAT_NCHW, FORMAT_NHWC or FORMAT_NONE. */
    format: string;
}

export interface OutputSpec extends TensorSpec {
    hasLabels: boolean;
}

export interface Features {
    /** Columns of the only input, in its order; empty if unknown. */
    names: string[];
    /** Text of categories by column: the model takes the index. */
    categories: Record<string, unknown[]>;
}

/** A sample of `model_warmup` that can be made again here. */
export interface WarmupExample {
    name: string;
    inputs: { name: string; shape: number[]; fill: "zero" | "random" }[];
}

export interface ModelDescription {
    name: string;
    platform: string;
    inputs: InputSpec[];
    outputs: OutputSpec[];
    /** The first dimension of every tensor is the batch. */
    isBatched: boolean;
    /** 0 if the model does not batch. */
    maxBatchSize: number;
    isDecoupled: boolean;
    isSequence: boolean;
    features: Features;
    /** The text of the parameter `pictures`, with which the owner says how an input takes pictures. */
    pictures: string;
    warmups: WarmupExample[];
    /** What the form could not know, for people. */
    notes: string[];
}

/** Join both responses; `config` is undefined where this client may not read it. Throws Error for a model without metadata. */
export function describeModel(metadata: Metadata, config: Config | undefined): ModelDescription {
    const notes: string[] = [];
    const maxBatchSize = Number(config?.max_batch_size ?? 0);
    const inputs = (metadata.inputs ?? []).map((input): InputSpec => {
        const configured = config?.input?.find((each) => each.name === input.name);
        return { ...specOf(input), isOptional: configured?.optional ?? false, format: configured?.format ?? "FORMAT_NONE" };
    });
    const outputs = (metadata.outputs ?? []).map((output): OutputSpec => {
        const configured = config?.output?.find((each) => each.name === output.name);
        return { ...specOf(output), hasLabels: Boolean(configured?.label_filename) };
    });
    if (!inputs.length) throw new Error(`The model '${metadata.name}' has no metadata of inputs: a form needs it.`);
    if (!config) notes.push("The configuration of this model is not open to you: batching, labels and examples are unknown.");
    const parameters = config?.parameters ?? {};
    return {
        name: metadata.name,
        platform: metadata.platform ?? "",
        inputs,
        outputs,
        isBatched: maxBatchSize > 0,
        maxBatchSize,
        isDecoupled: config?.model_transaction_policy?.decoupled ?? false,
        isSequence: Boolean(config?.sequence_batching),
        features: {
            names: listIn(parameters["feature_names"]?.string_value),
            categories: objectIn(parameters["feature_categories"]?.string_value),
        },
        pictures: parameters["pictures"]?.string_value ?? "",
        warmups: warmupsOf(config?.model_warmup ?? [], maxBatchSize > 0, inputs, notes),
        notes,
    };
}

function specOf(tensor: { name: string; datatype: string; shape: (number | string)[] }): TensorSpec {
    const datatype = tensor.datatype.replace(/^TYPE_/, "").replace(/^STRING$/, "BYTES");
    if (!isDatatype(datatype)) throw new Error(`The tensor '${tensor.name}' has the datatype '${tensor.datatype}', which this page does not know.`);
    return { name: tensor.name, datatype, shape: tensor.shape.map(Number) };
}

function listIn(text: string | undefined): string[] {
    const value = parsed(text);
    return Array.isArray(value) ? value.map(String) : [];
}

function objectIn(text: string | undefined): Record<string, unknown[]> {
    const value = parsed(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return {};
    return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, unknown[]] => Array.isArray(entry[1])));
}

function parsed(text: string | undefined): unknown {
    try {
        return JSON.parse(text || "null");
    } catch {
        return null; // The owner's parameter of this name means something else.
    }
}

function warmupsOf(samples: WarmupSample[], isBatched: boolean, inputs: InputSpec[], notes: string[]): WarmupExample[] {
    const found: WarmupExample[] = [];
    for (const sample of samples) {
        const given = Object.entries(sample.inputs ?? {}).filter(([name]) => inputs.some((each) => each.name === name));
        if (given.some(([, input]) => input.input_data_file)) {
            notes.push(`The warm-up sample '${sample.name ?? ""}' is a file on the server, which has no route for it.`);
            continue;
        }
        if (!given.length) continue;
        found.push({
            name: sample.name || "warm-up",
            inputs: given.map(([name, input]) => ({
                name,
                shape: [...(isBatched ? [1] : []), ...(input.dims ?? []).map(Number)],
                fill: input.zero_data ? "zero" : "random",
            })),
        });
    }
    return found;
}

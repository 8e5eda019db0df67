/** Values to begin with: the samples of `model_warmup`, and generated ones. */

import { type Tensor, elementCount, integerBounds, isFloat, makeNumbers, tensorOf } from "../tensor/datatypes";
import { InputProblem, bytesOf } from "../tensor/elements";
import type { InputSpec } from "../wire/model";

export type Fill = "random" | "zero" | "one" | "count";

export const FILL_NAMES: Record<Fill, string> = {
    random: "random values",
    zero: "zeros",
    one: "ones",
    count: "0, 1, 2, …",
};

/** A tensor of more elements than this is not made here. */
export const MAX_ELEMENTS = 32 * 1024 * 1024;
const MAX_RANDOM_INTEGER = 99;

/** Generate an input. Random values are what every model accepts: fractions of 1, integers from 0 to 99. */
export function generated(input: InputSpec, shape: number[], fill: Fill, random: () => number = Math.random): Tensor {
    const count = elementCount(shape);
    if (count > MAX_ELEMENTS) throw new InputProblem(`${count} values are more than this page generates (${MAX_ELEMENTS}): choose smaller dimensions`);
    if (input.datatype === "BYTES") {
        return tensorOf(input.name, "BYTES", shape, Array.from({ length: count }, () => bytesOf(fill === "zero" ? "" : "example")));
    }
    const values = makeNumbers(input.datatype, count);
    const most = Math.min(MAX_RANDOM_INTEGER, Number(integerBounds(input.datatype)?.[1] ?? MAX_RANDOM_INTEGER));
    const value = (index: number): number => {
        if (fill === "zero") return 0;
        if (fill === "one") return 1;
        if (fill === "count") return isFloat(input.datatype) ? index : index % (most + 1);
        return isFloat(input.datatype) ? Math.round(random() * 1000) / 1000 : Math.floor(random() * (most + 1));
    };
    if (values instanceof BigInt64Array || values instanceof BigUint64Array) {
        for (let index = 0; index < count; index++) values[index] = BigInt(value(index));
    } else {
        for (let index = 0; index < count; index++) values[index] = value(index);
    }
    return tensorOf(input.name, input.datatype, shape, values);
}

/** A shape to begin with: 1 for free dimensions, more where the last one is a length. */
export function exampleShape(input: InputSpec, isBatched: boolean): number[] {
    return input.shape.map((size, axis) => {
        if (size >= 0) return size;
        const isLength = axis > 0 && axis === input.shape.length - 1;
        return isLength && (axis > 1 || isBatched || input.shape.length === 1) ? 8 : 1;
    });
}

/** What the values of a tensor are like, computed in slices, so that a tensor of 100 MB does not stop the page. */

import type { Numbers } from "./datatypes";

export interface Summary {
    count: number;
    /** Of the finite values; NaN if there are none. */
    min: number;
    max: number;
    mean: number;
    deviation: number;
    zeroCount: number;
    nanCount: number;
    infiniteCount: number;
    /** Finite values in equal intervals from `min` to `max`. */
    bins: number[];
}

const SLICE = 1 << 20;
const BIN_COUNT = 40;

/** Summarize values; `pause` runs between slices of a million elements. */
export async function summarize(values: Numbers, pause: () => Promise<void> = nextTask): Promise<Summary> {
    const summary: Summary = {
        count: values.length, min: Infinity, max: -Infinity, mean: NaN, deviation: NaN,
        zeroCount: 0, nanCount: 0, infiniteCount: 0, bins: [],
    };
    let finite = 0;
    let mean = 0;
    let squares = 0;
    await inSlices(values.length, pause, (begin, end) => {
        for (let index = begin; index < end; index++) {
            const value = Number(values[index]);
            if (value !== value) summary.nanCount++;
            else if (value === Infinity || value === -Infinity) summary.infiniteCount++;
            else {
                if (value === 0) summary.zeroCount++;
                if (value < summary.min) summary.min = value;
                if (value > summary.max) summary.max = value;
                finite++;
                const step = value - mean; // Welford: no cancellation of large sums.
                mean += step / finite;
                squares += step * (value - mean);
            }
        }
    });
    if (!finite) return { ...summary, min: NaN, max: NaN };
    summary.mean = mean;
    summary.deviation = Math.sqrt(squares / finite);
    summary.bins = await binned(values, summary, pause);
    return summary;
}

async function binned(values: Numbers, { min, max }: Summary, pause: () => Promise<void>): Promise<number[]> {
    if (min === max) return [values.length];
    const bins = new Array<number>(BIN_COUNT).fill(0);
    const width = (max - min) / BIN_COUNT || Number.MIN_VALUE;
    await inSlices(values.length, pause, (begin, end) => {
        for (let index = begin; index < end; index++) {
            const value = Number(values[index]);
            if (value < min || value > max || value !== value) continue;
            const bin = Math.min(BIN_COUNT - 1, Math.floor((value - min) / width));
            bins[bin] = (bins[bin] ?? 0) + 1;
        }
    });
    return bins;
}

async function inSlices(count: number, pause: () => Promise<void>, work: (begin: number, end: number) => void): Promise<void> {
    for (let begin = 0; begin < count; begin += SLICE) {
        if (begin) await pause();
        work(begin, Math.min(count, begin + SLICE));
    }
}

function nextTask(): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve));
}

export interface Ranked {
    index: number;
    value: number;
}

/** The `count` largest values, in descending order; of equal ones the first. NaN is left out. */
export function largest(values: Numbers | readonly number[], count: number, begin = 0, end = values.length): Ranked[] {
    const found: Ranked[] = [];
    for (let index = begin; index < end; index++) {
        const value = Number(values[index]);
        const last = found[found.length - 1];
        if (value !== value || (found.length === count && last && value <= last.value)) continue;
        let place = found.length;
        while (place > 0 && found[place - 1]!.value < value) place--;
        found.splice(place, 0, { index: index - begin, value });
        if (found.length > count) found.pop();
    }
    return found;
}

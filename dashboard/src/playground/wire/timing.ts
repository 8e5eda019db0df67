/** Where the time of a request went, from the field `Server-Timing` and the clock of the browser. */

export interface TimePart {
    name: string;
    /** What the part is, for people. */
    meaning: string;
    ms: number;
}

const MEANINGS: Record<string, string> = {
    parse: "reading the request",
    queue: "waiting for an instance",
    hold: "waiting for the batch to fill",
    cache: "looking into the response cache",
    gather: "joining the inputs of the batch",
    compute: "executing the model",
    scatter: "splitting the outputs of the batch",
    encode: "writing and compressing the response",
};
const FIELD = /^\s*([!#$%&'*+.^_`|~\w-]+)\s*;.*?dur=("?)([\d.]+)\2/;

/** Read `Server-Timing`; parts of an ensemble's steps and unknown ones are left out, because they overlap others. */
export function serverParts(value: string | null): TimePart[] {
    const parts: TimePart[] = [];
    for (const field of (value ?? "").split(",")) {
        const found = FIELD.exec(field);
        const meaning = found && MEANINGS[found[1]!];
        if (found && meaning) parts.push({ name: found[1]!, meaning, ms: Number(found[3]) });
    }
    return parts;
}

/** The steps of an ensemble with their durations. */
export function stepParts(value: string | null): TimePart[] {
    const steps = (value ?? "").split(",").map((field) => FIELD.exec(field));
    return steps.flatMap((found) => {
        if (!found?.[1]?.startsWith("step_")) return [];
        const name = found[1].slice("step_".length);
        return [{ name, meaning: `step ${name}`, ms: Number(found[3]) }];
    });
}

/** All of a request that took `totalMs` in the browser: the server's parts, and the rest. */
export function splitTime(totalMs: number, value: string | null): TimePart[] {
    const parts = serverParts(value);
    const rest = totalMs - parts.reduce((sum, each) => sum + each.ms, 0);
    if (!parts.length) return [{ name: "request", meaning: "from sending to the last byte of the response", ms: totalMs }];
    return [...parts, { name: "network", meaning: "browser and network", ms: Math.max(0, rest) }];
}

export function shownMs(ms: number): string {
    if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
    return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

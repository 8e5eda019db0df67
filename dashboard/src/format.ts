/** Numbers with their units, three digits at most where more would say nothing. A missing value is a dash. */

import type { Percentile } from "./state/histogram";

export const NONE = "–";
const NARROW = "\u202f";

/** Three significant digits, without a trailing zero behind the point. */
function short(value: number): string {
    const size = Math.abs(value);
    const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
    return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export function duration(us: number | null | undefined): string {
    if (us === null || us === undefined || !Number.isFinite(us)) return NONE;
    if (us < 999.5) return `${short(us)}${NARROW}µs`;
    if (us < 999_500) return `${short(us / 1000)}${NARROW}ms`;
    if (us < 120e6) return `${short(us / 1e6)}${NARROW}s`;
    return `${short(us / 60e6)}${NARROW}min`;
}

export function latency(value: Percentile | null): string {
    return value ? `${value.isOver ? "> " : ""}${duration(value.us)}` : NONE;
}

/** A count such as 12.4 k. */
export function count(value: number): string {
    const size = Math.abs(value);
    if (size < 10_000) return Number.isInteger(value) ? String(value) : short(value);
    if (size < 999_500) return `${short(value / 1000)}${NARROW}k`;
    if (size < 999_500_000) return `${short(value / 1e6)}${NARROW}M`;
    return `${short(value / 1e9)}${NARROW}G`;
}

/** A rate per second, without the unit. */
export function rate(value: number): string {
    if (value > 0 && value < 0.05) return "< 0.1";
    return value < 10 ? short(Math.round(value * 10) / 10) : count(Math.round(value * 10) / 10);
}

export function bytes(value: number): string {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1024;
    return `${short(value)}${NARROW}${units[unit]}`;
}

export function percent(share: number): string {
    if (share > 0 && share < 0.0001) return `< 0.01${NARROW}%`;
    return `${short(share * 100)}${NARROW}%`;
}

/** Time of day, to the millisecond: the way to find a request in a log. */
export function clock(time_ms: number): string {
    const time = new Date(time_ms);
    const pad = (value: number, width = 2) => String(value).padStart(width, "0");
    return `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}.${pad(time.getMilliseconds(), 3)}`;
}

/** How long ago or how long, in the largest unit that fits: 45 s, 3 min, 5 h, 2 d. */
export function age(ms: number): string {
    const seconds = Math.max(0, ms / 1000);
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
    return `${Math.round(seconds / 86_400)} d`;
}

/** Control and direction characters, ends of lines and what has no width, which could change the text around them, become visible. */
export function visible(text: string): string {
    return text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (found) =>
        found === "\n" || found === "\t" ? found : `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
}

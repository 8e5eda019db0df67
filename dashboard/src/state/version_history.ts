/** What one version did, sample by sample: differences of counters that never become negative. */

import type { VersionSample } from "../live";

const COUNTERS = [
    "success",
    "failure",
    "executions",
    "inferences",
    "request_ns",
    "queue_ns",
    "compute_input_ns",
    "compute_ns",
    "compute_output_ns",
    "cache_hits",
    "cache_misses",
] as const;
export type Counter = (typeof COUNTERS)[number];

/** What happened between two samples. */
export type Point = Record<Counter, number> & {
    time_ms: number;
    /** Length of the interval. */
    seconds: number;
    latency_counts: readonly number[];
};

/** Percentiles and the like are of the last minute. */
export const WINDOW_MS = 60_000;
/** After a longer gap than this, the difference says nothing of the present. */
const GAP_MS = 10_000;

export class VersionHistory {
    last: VersionSample | null = null;
    points: Point[] = [];
    /** Latency counts of the last minute. */
    window: number[] = [];
    private windowStart = 0;

    /** Take the totals of a sample; `before_ms` is the time of the sample before, 0 if there was none. */
    push(sample: VersionSample, time_ms: number, before_ms: number, capacity: number): void {
        const before = this.last;
        this.last = sample;
        const gap_ms = time_ms - before_ms;
        if (before_ms > 0 && gap_ms > 0 && gap_ms <= GAP_MS) {
            const point = difference(sample, before, time_ms, gap_ms / 1000);
            if (point.success || point.failure || point.executions) this.append(point, capacity);
        }
    }

    /** Forget what happened, but not the totals. */
    restart(): void {
        this.points = [];
        this.window = [];
        this.windowStart = 0;
    }

    /** Remove from the window what is older than a minute. */
    expire(time_ms: number): void {
        for (; this.windowStart < this.points.length; this.windowStart++) {
            const point = this.points[this.windowStart];
            if (!point || point.time_ms > time_ms - WINDOW_MS) break;
            point.latency_counts.forEach((count, i) => (this.window[i] = (this.window[i] ?? 0) - count));
        }
    }

    /** Whether there was a request in the last minute. */
    get isActive(): boolean {
        return this.windowStart < this.points.length;
    }

    /** The points of the last minute. */
    recent(): Point[] {
        return this.points.slice(this.windowStart);
    }

    /** A counter's rate per second, over the last `seconds`. */
    rate(counter: Counter, time_ms: number, seconds: number): number {
        let total = 0;
        for (let i = this.points.length - 1; i >= 0; i--) {
            const point = this.points[i];
            if (!point || point.time_ms <= time_ms - seconds * 1000) break;
            total += point[counter];
        }
        return total / seconds;
    }

    private append(point: Point, capacity: number): void {
        this.points.push(point);
        point.latency_counts.forEach((count, i) => (this.window[i] = (this.window[i] ?? 0) + count));
        const surplus = this.points.length - capacity;
        if (surplus > 0) {
            const old = this.points.splice(0, surplus);
            for (const each of old.slice(this.windowStart)) {
                each.latency_counts.forEach((count, i) => (this.window[i] = (this.window[i] ?? 0) - count));
            }
            this.windowStart = Math.max(0, this.windowStart - surplus);
        }
    }
}

/** Counters that shrank began again at zero, all of the version: then their values are the difference. */
function difference(now: VersionSample, before: VersionSample | null, time_ms: number, seconds: number): Point {
    const isNew = !before || COUNTERS.some((counter) => now[counter] < before[counter]);
    const changes = COUNTERS.map((counter) => [counter, now[counter] - (isNew ? 0 : before[counter])]);
    const old = isNew || before.latency_counts.length !== now.latency_counts.length ? null : before.latency_counts;
    const latency_counts = now.latency_counts.map((count, i) => Math.max(0, count - (old?.[i] ?? 0)));
    return { ...(Object.fromEntries(changes) as Record<Counter, number>), time_ms, seconds, latency_counts };
}

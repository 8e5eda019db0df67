/** The figures of a model that its card shows, over its versions. */

import { percentile, sum, type Percentile } from "./histogram";
import type { VersionHistory } from "./version_history";

/** Rates are over this time, so that they can be read. */
const RATE_SECONDS = 5;
const SPARK_POINTS = 60;

export interface Summary {
    /** Requests per second, over five seconds. */
    rate: number;
    /** Requests per second between the last two samples. */
    lastRate: number;
    /** Share of failed requests of the last minute; null without requests. */
    failedShare: number | null;
    /** Failed requests of the last minute. */
    failed: number;
    /** Requests since the versions were loaded. */
    total: number;
    totalFailed: number;
    /** Percentiles are of the last minute, or since the load if there was no request in it. */
    isRecent: boolean;
    p50: Percentile | null;
    p95: Percentile | null;
    p99: Percentile | null;
    /** Mean batch size; null without executions. */
    batch: number | null;
    pending: number;
    executing: number;
    /** Requests per second, one value a sample, oldest first. */
    spark: number[];
}

export const EMPTY: Summary = {
    rate: 0,
    lastRate: 0,
    failedShare: null,
    failed: 0,
    total: 0,
    totalFailed: 0,
    isRecent: false,
    p50: null,
    p95: null,
    p99: null,
    batch: null,
    pending: 0,
    executing: 0,
    spark: [],
};

/** Add up versions; `times` are those of the samples, oldest first. */
export function summarize(versions: readonly VersionHistory[], times: readonly number[]): Summary {
    const now_ms = times[times.length - 1] ?? 0;
    const first_ms = times[0] ?? now_ms;
    const second_ms = times[1] ?? first_ms + 1000;
    // The first sample stands for an interval as long as the next one.
    const seconds = Math.max(0.25, Math.min(RATE_SECONDS, (now_ms - first_ms + second_ms - first_ms) / 1000));
    const isRecent = versions.some((history) => history.isActive);
    const counts: number[] = [];
    const spark = new Map(times.slice(-SPARK_POINTS).map((time_ms) => [time_ms, 0]));
    const result = { ...EMPTY, isRecent };
    let inferences = 0;
    let executions = 0;
    let requests = 0;
    let bounds_us: readonly number[] = [];
    for (const history of versions) {
        const last = history.last;
        if (!last) continue;
        if (last.bounds_us.length > bounds_us.length) bounds_us = last.bounds_us;
        (isRecent ? history.window : last.latency_counts).forEach((count, i) => (counts[i] = (counts[i] ?? 0) + count));
        result.total += last.success + last.failure;
        result.totalFailed += last.failure;
        result.pending += last.pending;
        result.executing += last.executing;
        result.rate += history.rate("success", now_ms, seconds) + history.rate("failure", now_ms, seconds);
        for (const point of history.recent()) {
            requests += point.success + point.failure;
            result.failed += point.failure;
            inferences += point.inferences;
            executions += point.executions;
            const value = spark.get(point.time_ms);
            if (value !== undefined) spark.set(point.time_ms, value + (point.success + point.failure) / point.seconds);
        }
        if (!isRecent) {
            inferences += last.inferences;
            executions += last.executions;
        }
    }
    result.spark = [...spark.values()];
    result.lastRate = result.spark[result.spark.length - 1] ?? 0;
    result.failedShare = requests ? result.failed / requests : null;
    result.batch = executions ? inferences / executions : null;
    if (sum(counts) > 0) {
        result.p50 = percentile(counts, bounds_us, 0.5);
        result.p95 = percentile(counts, bounds_us, 0.95);
        result.p99 = percentile(counts, bounds_us, 0.99);
    }
    return result;
}

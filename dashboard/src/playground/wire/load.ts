/** A small load: the same request again and again for a bounded time, one after another or several at a time. */

export interface LoadResult {
    count: number;
    errorCount: number;
    firstError: string;
    seconds: number;
    perSecond: number;
    p50Ms: number;
    p99Ms: number;
}

export const LOAD_SECONDS = 10;
/** Times are kept of so many requests at most; the load ends there. */
const MAX_REQUESTS = 50_000;
const MAX_ERRORS = 20;

/**
 * Send until the time is over or `signal` aborts. `send` rejects for a failed request; `onProgress` gets results so far,
 * about five times a second. `now` is a clock in milliseconds.
 */
export async function runLoad(
    send: (signal: AbortSignal) => Promise<void>,
    concurrency: number,
    signal: AbortSignal,
    onProgress: (result: LoadResult) => void,
    now: () => number = () => performance.now(),
    seconds = LOAD_SECONDS,
): Promise<LoadResult> {
    const begin = now();
    const times: number[] = [];
    let errorCount = 0;
    let firstError = "";
    let shown = begin;
    const result = () => resultOf(times, errorCount, firstError, (now() - begin) / 1000);
    async function worker(): Promise<void> {
        while (!signal.aborted && now() - begin < seconds * 1000 && times.length < MAX_REQUESTS && errorCount < MAX_ERRORS) {
            const sent = now();
            try {
                await send(signal);
                times.push(now() - sent);
            } catch (error) {
                if (signal.aborted) return;
                errorCount++;
                firstError ||= (error as Error).message;
            }
            if (now() - shown > 200) {
                shown = now();
                onProgress(result());
            }
        }
    }
    await Promise.all(Array.from({ length: concurrency }, worker));
    return result();
}

function resultOf(times: readonly number[], errorCount: number, firstError: string, seconds: number): LoadResult {
    const sorted = Float64Array.from(times).sort();
    return {
        count: sorted.length, errorCount, firstError, seconds,
        perSecond: seconds > 0 ? sorted.length / seconds : 0,
        p50Ms: percentile(sorted, 0.5),
        p99Ms: percentile(sorted, 0.99),
    };
}

/** The nearest-rank percentile of sorted values; NaN if there are none. */
export function percentile(sorted: ArrayLike<number>, share: number): number {
    return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? NaN;
}

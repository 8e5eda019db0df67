/** Percentiles of a histogram whose buckets have upper bounds; the last bucket has none. */

export interface Percentile {
    /** Microseconds. */
    us: number;
    /** The value lies in the last bucket: it is at least `us`. */
    isOver: boolean;
}

/** The value below which `share` (0 to 1) of the counts lie, linear within a bucket; null without counts. */
export function percentile(counts: ArrayLike<number>, bounds_us: readonly number[], share: number): Percentile | null {
    const total = sum(counts);
    if (total <= 0) return null;
    let rank = share * total;
    for (let i = 0; i < counts.length; i++) {
        const count = counts[i] ?? 0;
        if (count > 0 && rank <= count) {
            const upper = bounds_us[i];
            const lower = i > 0 ? (bounds_us[i - 1] ?? 0) : 0;
            if (upper === undefined) return { us: lower, isOver: true };
            return { us: lower + ((upper - lower) * rank) / count, isOver: false };
        }
        rank -= count;
    }
    return { us: bounds_us[bounds_us.length - 1] ?? 0, isOver: true };
}

export function sum(values: ArrayLike<number>): number {
    let total = 0;
    for (let i = 0; i < values.length; i++) total += values[i] ?? 0;
    return total;
}

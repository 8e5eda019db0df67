/** A line without axes. It has no label of its own: the figure beside it says the value. */

const WIDTH = 120;
const HEIGHT = 32;
/** Fewer values than these do not fill the width. */
const FEWEST = 12;

export function Spark(props: { values: readonly number[]; points?: number }) {
    const values = props.values.slice(-(props.points ?? 60));
    const points = Math.max(FEWEST, values.length);
    const missing = points - values.length; // Before the page looked: no line there.
    const top = Math.max(1e-9, ...values);
    const place = (value: number, i: number) =>
        `${(((missing + i) * WIDTH) / (points - 1)).toFixed(1)},${(HEIGHT - 1.5 - (value / top) * (HEIGHT - 4)).toFixed(1)}`;
    const line = values.map(place).join(" ");
    const isFlat = top <= 1e-9;
    const from = ((missing * WIDTH) / (points - 1)).toFixed(1);
    return (
        <svg class={isFlat ? "spark is-flat" : "spark"} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true" focusable="false">
            {!isFlat && <polygon points={`${from},${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} />}
            <polyline points={isFlat ? `0,${HEIGHT - 1.5} ${WIDTH},${HEIGHT - 1.5}` : line} />
        </svg>
    );
}

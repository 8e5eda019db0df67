/** Stacked areas over time, drawn by uPlot; a table of the last values stands beside it for those who cannot see it. */

import { useEffect, useRef } from "preact/hooks";
import UPlot from "uplot";

export interface Series {
    label: string;
    /** The name of a colour of tokens.css. */
    color: string;
    /** null: there is no value, as nothing happened. */
    values: readonly (number | null)[];
}

const HEIGHT = 180;
const darkness = matchMedia("(prefers-color-scheme: dark)");

/** Lay series on one another: the first is the lowest. */
function stack(series: readonly Series[]): (number | null)[][] {
    let below: (number | null)[] = [];
    return series.map((each) => (below = each.values.map((value, i) => (value === null ? null : value + (below[i] ?? 0)))));
}

function lastOf(series: Series): number {
    return series.values.findLast((value) => value !== null) ?? 0;
}

/** `times_ms` are the horizontal axis; `format` writes values of the vertical one. */
export function StackedChart(props: { times_ms: readonly number[]; series: readonly Series[]; format: (value: number) => string; label: string }) {
    const place = useRef<HTMLDivElement>(null);
    const chart = useRef<UPlot | null>(null);
    // uPlot draws the last series on top, so the highest of the stack comes first.
    const data = [props.times_ms.map((time) => time / 1000), ...stack(props.series).toReversed()] as UPlot.AlignedData;
    const hasData = props.series.some((each) => each.values.some((value) => value));
    const shape = props.series.map((each) => each.label).join();
    useEffect(() => {
        const target = place.current;
        if (!target) return;
        const draw = () => {
            chart.current?.destroy();
            chart.current = new UPlot(options(target.clientWidth, props.series.toReversed(), props.format), data, target);
        };
        draw();
        const observer = new ResizeObserver(() => chart.current?.setSize({ width: target.clientWidth, height: HEIGHT }));
        observer.observe(target);
        darkness.addEventListener("change", draw);
        return () => {
            observer.disconnect();
            darkness.removeEventListener("change", draw);
            chart.current?.destroy();
            chart.current = null;
        };
    }, [shape, hasData]);
    useEffect(() => {
        chart.current?.setData(data);
    });
    if (!hasData) {
        return <p class="chart no-data">Nothing to show yet. The chart begins with the next request.</p>;
    }
    const last = props.series.map((each) => `${each.label} ${props.format(lastOf(each))}`);
    return (
        <figure class="chart">
            <div ref={place} role="img" aria-label={`${props.label}. Now: ${last.join(", ")}.`} />
            <Legend series={props.series} format={props.format} />
        </figure>
    );
}

function Legend(props: { series: readonly Series[]; format: (value: number) => string }) {
    return (
        <figcaption class="legend" aria-hidden="true">
            {props.series.map((each) => (
                <span key={each.label}>
                    <i style={{ background: `var(${each.color})` }} />
                    {each.label} <b>{props.format(lastOf(each))}</b>
                </span>
            ))}
        </figcaption>
    );
}

function options(width: number, series: readonly Series[], format: (value: number) => string): UPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--ink-3"), font: `11px ${color("--font")}`, ticks: { show: false } };
    return {
        width,
        height: HEIGHT,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: true }, y: { range: (_, _min, max) => [0, Math.max(max * 1.15, 1e-6)] } },
        axes: [
            { ...axis, grid: { show: false }, size: 28, space: 80, values: (_, splits) => splits.map(timeOfDay) },
            { ...axis, grid: { stroke: color("--line"), width: 1 }, size: 62, space: 36, values: (_, splits) => splits.map((value) => format(value)) },
        ],
        series: [{}, ...series.map((each) => ({ fill: color(each.color), width: 0, points: { show: false } }))],
    };
}

function timeOfDay(seconds: number): string {
    return new Date(seconds * 1000).toTimeString().slice(0, 8);
}

/** Outputs as bars, text, a table, and the distribution of many values. */

import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import type { Numbers, Tensor } from "../tensor/datatypes";
import { shownBytes, shownElement, shownNumber } from "../tensor/elements";
import { type Summary, largest, summarize } from "../tensor/statistics";
import { type ClassRow, areShares, barLengths, named, prettyText } from "./views";

const MAX_ROWS = 50;
const MAX_COLUMNS = 24;
const MAX_TEXTS = 50;
const MAX_TEXT = 20_000;

export function Bars(props: { rows: ClassRow[] }) {
    const values = props.rows.map((row) => row.value);
    const lengths = barLengths(values);
    const isShare = areShares(values);
    return (
        <ol class="pg-bars">
            {props.rows.map((row, index) => (
                <li key={index}>
                    <span class="pg-bar-label" title={row.label}>{row.label ? <Text>{row.label}</Text> : `class ${row.index}`}</span>
                    <svg class="pg-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width={100 * lengths[index]!} height={10} /></svg>
                    <span class="pg-bar-value">{isShare ? `${(row.value * 100).toFixed(1)} %` : shownNumber(row.value, "FP32").slice(0, 9)}</span>
                    {row.label && <span class="pg-bar-index">{row.index}</span>}
                </li>
            ))}
        </ol>
    );
}

export function ClassesView(props: { rows: ClassRow[][]; names: readonly string[] }) {
    return (
        <>
            {props.rows.slice(0, MAX_ROWS).map((rows, index) => (
                <div key={index}>
                    {props.rows.length > 1 && <h4>Row {index}</h4>}
                    <Bars rows={named(rows, props.names)} />
                </div>
            ))}
            <More count={props.rows.length - MAX_ROWS} what="rows" />
        </>
    );
}

export function LargestView(props: { tensor: Tensor; names: readonly string[] }) {
    const values = props.tensor.values as Numbers;
    return <Bars rows={named(largest(values, 10).map(({ index, value }) => ({ index, value, label: "" })), props.names)} />;
}

export function TextView(props: { tensor: Tensor & { datatype: "BYTES" } }) {
    const { values } = props.tensor;
    return (
        <div class="pg-answers">
            {values.slice(0, MAX_TEXTS).map((bytes, index) => {
                const text = prettyText(shownBytes(bytes.length > MAX_TEXT * 4 ? bytes.subarray(0, MAX_TEXT * 4) : bytes));
                return (
                    <div key={index}>
                        <p class="pg-answer"><Text>{text.slice(0, MAX_TEXT)}</Text></p>
                        {bytes.length > MAX_TEXT && <p class="quiet-text">{bytes.length.toLocaleString("en")} bytes; the page shows the first {MAX_TEXT.toLocaleString("en")} characters.</p>}
                    </div>
                );
            })}
            <More count={values.length - MAX_TEXTS} what="elements" />
            {!values.length && <p class="quiet-text">No elements.</p>}
        </div>
    );
}

export function TableView(props: { tensor: Tensor }) {
    const { tensor } = props;
    const width = Math.max(1, tensor.shape.length > 1 ? tensor.shape.at(-1)! : 1);
    const count = tensor.values.length;
    const rows = Math.ceil(count / width);
    if (!count) return <p class="quiet-text">No elements.</p>;
    const columns = Math.min(width, MAX_COLUMNS);
    return (
        <>
            <div class="pg-table" tabIndex={0} role="region" aria-label={`Values of ${tensor.name}`}>
                <table>
                    {width > 1 && <thead><tr><td />{Array.from({ length: columns }, (_, index) => <th key={index} scope="col">{index}</th>)}</tr></thead>}
                    <tbody>
                        {Array.from({ length: Math.min(rows, MAX_ROWS) }, (_, row) => (
                            <tr key={row}>
                                <th scope="row">{row}</th>
                                {Array.from({ length: columns }, (_, column) => <td key={column}><Text>{shownElement(tensor, row * width + column).slice(0, 200)}</Text></td>)}
                            </tr>
                        ))}
                    </tbody>
                </table>
            </div>
            <More count={rows - MAX_ROWS} what="rows" />
            <More count={width - MAX_COLUMNS} what="columns" />
        </>
    );
}

function More(props: { count: number; what: string }) {
    return props.count > 0 ? <p class="quiet-text">and {props.count.toLocaleString("en")} more {props.what}</p> : null;
}

export function DistributionView(props: { tensor: Tensor }) {
    const summary = useSignal<Summary | undefined>(undefined);
    useEffect(() => {
        let isCurrent = true;
        summary.value = undefined;
        void summarize(props.tensor.values as Numbers).then((made) => {
            if (isCurrent) summary.value = made;
        });
        return () => void (isCurrent = false);
    }, [props.tensor]);
    const made = summary.value;
    if (!made) return <p class="quiet-text" role="status">Reading {props.tensor.values.length.toLocaleString("en")} values…</p>;
    const facts: [string, string][] = [
        ["values", made.count.toLocaleString("en")],
        ["least", number(made.min)], ["greatest", number(made.max)], ["mean", number(made.mean)], ["deviation", number(made.deviation)],
        ["zeros", made.zeroCount.toLocaleString("en")],
        ...(made.nanCount ? [["NaN", made.nanCount.toLocaleString("en")] as [string, string]] : []),
        ...(made.infiniteCount ? [["infinite", made.infiniteCount.toLocaleString("en")] as [string, string]] : []),
    ];
    return (
        <>
            <dl class="pg-facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
            <Histogram summary={made} name={props.tensor.name} />
            <p class="quiet-text pg-first">First: {Array.from({ length: Math.min(8, made.count) }, (_, index) => shownElement(props.tensor, index)).join(", ")}{made.count > 8 && ", …"}</p>
        </>
    );
}

function number(value: number): string {
    return Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "–";
}

function Histogram(props: { summary: Summary; name: string }) {
    const { bins, min, max } = props.summary;
    if (bins.length < 2) return null;
    const most = Math.max(...bins);
    return (
        <figure class="pg-histogram">
            <svg viewBox={`0 0 ${bins.length} 100`} preserveAspectRatio="none" role="img" aria-label={`Histogram of ${props.name}`}>
                {bins.map((bin, index) => {
                    const height = bin && Math.max(1.5, (bin / most) * 100);
                    return <rect key={index} x={index + 0.06} width={0.88} y={100 - height} height={height}><title>{bin}</title></rect>;
                })}
            </svg>
            <figcaption><span>{number(min)}</span><span>{number(max)}</span></figcaption>
        </figure>
    );
}

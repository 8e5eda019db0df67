/** A graph of models in SVG: boxes in layers, lines with rates between them. */

import { layOut, type Placed } from "./pipeline_layout";

export interface Node {
    id: string;
    title: string;
    note: string;
    href?: string;
    /** Where requests come from or go to: not a model. */
    isEnd?: boolean;
    isBad?: boolean;
}

export interface Edge {
    from: string;
    to: string;
    label: string;
    rate: number;
    title?: string;
}

const BOX = { width: 160, height: 56 };
const GAP = { x: 84, y: 28 };
const MARGIN = 12;
const MAX_TITLE = 19;

export function Graph(props: { label: string; nodes: readonly Node[]; edges: readonly Edge[] }) {
    const layout = layOut(props.nodes.map((node) => node.id), props.edges.map((edge) => [edge.from, edge.to] as const));
    const width = layout.layers * (BOX.width + GAP.x) - GAP.x + 2 * MARGIN;
    const height = layout.rows * (BOX.height + GAP.y) - GAP.y + 2 * MARGIN;
    const titleOf = new Map(props.nodes.map((node) => [node.id, node.title]));
    return (
        <>
            <div class="scroll graph" tabIndex={0} role="region" aria-label={props.label}>
                <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="group" aria-label={props.label}>
                    {props.edges.map((edge) => {
                        const from = layout.nodes.get(edge.from);
                        const to = layout.nodes.get(edge.to);
                        return from && to ? <Line key={`${edge.from}\n${edge.to}`} edge={edge} from={from} to={to} /> : null;
                    })}
                    {props.nodes.map((node) => {
                        const placed = layout.nodes.get(node.id);
                        return placed ? <Box key={node.id} node={node} placed={placed} /> : null;
                    })}
                </svg>
            </div>
            <ul class="out-of-sight">
                {props.edges.map((edge) => (
                    <li key={`${edge.from}\n${edge.to}`}>{titleOf.get(edge.from)} to {titleOf.get(edge.to)}: {edge.label || "no calls now"}{edge.title ? `, ${edge.title}` : ""}</li>
                ))}
            </ul>
        </>
    );
}

function left(placed: Placed): number {
    return MARGIN + placed.layer * (BOX.width + GAP.x);
}

function top(placed: Placed): number {
    return MARGIN + placed.row * (BOX.height + GAP.y);
}

function Line(props: { edge: Edge; from: Placed; to: Placed }) {
    const { edge, from, to } = props;
    const x1 = left(from) + BOX.width;
    const y1 = top(from) + BOX.height / 2;
    const x2 = left(to);
    const y2 = top(to) + BOX.height / 2;
    const bend = Math.max(36, (x2 - x1) / 2);
    const width = edge.rate > 0 ? Math.min(6, 1.5 + Math.log10(1 + edge.rate)) : 1.25;
    return (
        <g class={edge.rate > 0 ? "edge live" : "edge"} aria-hidden="true">
            {edge.title && <title>{edge.title}</title>}
            <path d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} stroke-width={width} />
            {edge.label && <text x={(x1 + x2) / 2} y={(y1 + y2) / 2 + 4} text-anchor="middle">{edge.label}</text>}
        </g>
    );
}

function Box(props: { node: Node; placed: Placed }) {
    const { node, placed } = props;
    const title = node.title.length > MAX_TITLE ? `${node.title.slice(0, MAX_TITLE - 1)}…` : node.title;
    const box = (
        <g class={`node${node.isEnd ? " end" : ""}${node.isBad ? " bad" : ""}`} transform={`translate(${left(placed)} ${top(placed)})`}>
            {title !== node.title && <title>{node.title}</title>}
            <rect width={BOX.width} height={BOX.height} rx={node.isEnd ? 28 : 8} />
            <text class="node-title" x={node.isEnd ? BOX.width / 2 : 14} y="25" text-anchor={node.isEnd ? "middle" : "start"}>{title}</text>
            <text class="node-note" x={node.isEnd ? BOX.width / 2 : 14} y="43" text-anchor={node.isEnd ? "middle" : "start"}>{node.note}</text>
        </g>
    );
    return node.href ? <a href={node.href}>{box}</a> : box;
}

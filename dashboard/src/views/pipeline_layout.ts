/** Places the nodes of a graph in layers from left to right, with few crossings. */

export interface Placed {
    id: string;
    layer: number;
    /** Position within the layer, from 0. */
    row: number;
}

export interface Layout {
    nodes: Map<string, Placed>;
    layers: number;
    rows: number;
}

const SWEEPS = 6;

/** `edges` are pairs of ids. An edge that closes a cycle does not move its target. */
export function layOut(ids: readonly string[], edges: readonly (readonly [string, string])[]): Layout {
    const layerOf = longestPaths(ids, edges);
    const layers: string[][] = [];
    for (const id of ids) (layers[layerOf.get(id) ?? 0] ??= []).push(id);
    for (let i = 0; i < layers.length; i++) layers[i] ??= [];
    const rowOf = new Map<string, number>();
    const number = (layer: string[]) => layer.forEach((id, row) => rowOf.set(id, row - (layer.length - 1) / 2));
    layers.forEach(number);
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
        const forward = sweep % 2 === 0;
        for (const layer of forward ? layers : [...layers].reverse()) {
            const wish = new Map(layer.map((id) => [id, meanRow(id, edges, rowOf, forward)]));
            layer.sort((a, b) => (wish.get(a) ?? 0) - (wish.get(b) ?? 0));
            number(layer);
        }
    }
    const rows = Math.max(1, ...layers.map((layer) => layer.length));
    const nodes = new Map<string, Placed>();
    layers.forEach((layer, i) => layer.forEach((id) => nodes.set(id, { id, layer: i, row: (rowOf.get(id) ?? 0) + (rows - 1) / 2 })));
    return { nodes, layers: layers.length, rows };
}

function longestPaths(ids: readonly string[], edges: readonly (readonly [string, string])[]): Map<string, number> {
    const layerOf = new Map(ids.map((id) => [id, 0]));
    const state = new Map<string, "open" | "done">();
    const order: string[] = [];
    const ahead: (readonly [string, string])[] = [];
    const visit = (id: string): void => {
        state.set(id, "open");
        for (const edge of edges) {
            const [from, to] = edge;
            if (from !== id || !layerOf.has(to) || state.get(to) === "open") continue;
            ahead.push(edge);
            if (!state.has(to)) visit(to);
        }
        state.set(id, "done");
        order.push(id);
    };
    for (const id of ids) if (!state.has(id)) visit(id);
    for (const id of order.reverse()) {
        for (const [from, to] of ahead) if (from === id) layerOf.set(to, Math.max(layerOf.get(to) ?? 0, (layerOf.get(id) ?? 0) + 1));
    }
    return layerOf;
}

function meanRow(id: string, edges: readonly (readonly [string, string])[], rowOf: ReadonlyMap<string, number>, forward: boolean): number {
    const near = edges.filter(([from, to]) => (forward ? to : from) === id).map(([from, to]) => rowOf.get(forward ? from : to) ?? 0);
    return near.length ? near.reduce((sum, row) => sum + row, 0) / near.length : (rowOf.get(id) ?? 0);
}

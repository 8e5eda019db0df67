/** Which models call which: all ensembles on a map, and one of them with its tensors. */

import { modelPath } from "../api";
import { duration, rate, visible } from "../format";
import { Empty, Panel, Text } from "../parts/blocks";
import { modelHref, route, viewHref } from "../routes";
import { useLoaded } from "../state/load";
import { detail, models, recentCalls, rowOf, sample, summaryOf } from "../state/store";
import { Graph, type Edge, type Node } from "./pipeline_graph";

const MAX_NODES = 80;
const REQUEST = " request";
const RESPONSE = " response";

export function Pipeline() {
    const rows = models.value;
    const shown = route.value.model;
    if (!rows) return <p class="waiting">Waiting for the server…</p>;
    const ensembles = rows.filter((row) => row.steps).map((row) => row.name);
    const others = rows.filter((row) => !row.steps).map((row) => row.name);
    return (
        <>
            <h1>Pipelines</h1>
            <div class="toolbar">
                <label>
                    <span>Show</span>
                    <select value={shown} onChange={(event) => (location.hash = viewHref("pipeline", event.currentTarget.value))}>
                        <option value="">All ensembles</option>
                        {ensembles.length > 0 && <optgroup label="Ensembles">{ensembles.map((name) => <option key={name} value={name}>{name}</option>)}</optgroup>}
                        <optgroup label="Calls of a model">{others.map((name) => <option key={name} value={name}>{name}</option>)}</optgroup>
                    </select>
                </label>
            </div>
            {shown ? rowOf(shown)?.steps ? <Ensemble key={shown} name={shown} /> : <Calls name={shown} /> : <AllEnsembles names={ensembles} />}
        </>
    );
}

function modelNode(name: string, note?: string): Node {
    const now = summaryOf(name).value;
    return { id: name, title: visible(name), note: note ?? `${rate(now.rate)}/s${now.p50 ? ` · ${duration(now.p50.us)}` : ""}`, href: rowOf(name)?.steps ? viewHref("pipeline", name) : modelHref(name) };
}

/** All ensembles with their steps. */
function AllEnsembles(props: { names: readonly string[] }) {
    void sample.value;
    if (!props.names.length) {
        return (
            <Empty title="No ensembles here.">
                <p>An ensemble executes several models for one request. Models that call others from Python are above, under “Calls of a model”.</p>
            </Empty>
        );
    }
    const ids = new Set<string>();
    const edges: Edge[] = [];
    for (const name of props.names) {
        const steps = [...new Set(rowOf(name)?.steps ?? [])];
        if (ids.size + steps.length + 1 > MAX_NODES) break;
        ids.add(name);
        for (const step of steps) {
            ids.add(step);
            const now = summaryOf(name).value;
            edges.push({ from: name, to: step, label: now.rate ? `${rate(now.rate)}/s` : "", rate: now.rate });
        }
    }
    const missing = props.names.filter((name) => !ids.has(name)).length;
    return (
        <Panel title="All ensembles" wide note={`The rate on a line is that of the ensemble.${missing ? ` ${missing} further ensembles: choose one above.` : ""}`}>
            <Graph label="Ensembles and their models" nodes={[...ids].map((name) => modelNode(name))} edges={edges} />
        </Panel>
    );
}

interface Step {
    model_name: string;
    input_map?: Record<string, string>;
    output_map?: Record<string, string>;
}

interface EnsembleConfig {
    input?: { name: string }[];
    output?: { name: string }[];
    ensemble_scheduling?: { step?: Step[] };
}

/** One ensemble: how tensors flow from the request to the response. */
function Ensemble(props: { name: string }) {
    const loaded = useLoaded<EnsembleConfig>(`${modelPath(props.name)}/config`).value;
    void sample.value;
    const now = summaryOf(props.name).value;
    if (!loaded.value) return loaded.error ? <Empty title="The server has no configuration of it."><p><Text>{loaded.error}</Text></p></Empty> : <p class="waiting">Waiting for the server…</p>;
    const config = loaded.value;
    const steps = config.ensemble_scheduling?.step ?? [];
    const stepId = (i: number) => `${i} ${steps[i]?.model_name ?? ""}`;
    const makerOf = new Map<string, string>((config.input ?? []).map((tensor) => [tensor.name, REQUEST]));
    steps.forEach((step, i) => Object.values(step.output_map ?? {}).forEach((tensor) => makerOf.set(tensor, stepId(i))));
    const edges = new Map<string, Edge & { tensors: string[] }>();
    const flow = (tensor: string, to: string, perSecond: number) => {
        const from = makerOf.get(tensor);
        if (from === undefined) return;
        const edge = edges.get(`${from}\n${to}`) ?? { from, to, label: "", rate: perSecond, tensors: [] };
        if (!edge.tensors.includes(tensor)) edge.tensors.push(tensor);
        edges.set(`${from}\n${to}`, edge);
    };
    const rateOf = (step: Step) => recentCalls(step.model_name)?.rate ?? now.rate;
    steps.forEach((step, i) => Object.values(step.input_map ?? {}).forEach((tensor) => flow(tensor, stepId(i), rateOf(step))));
    (config.output ?? []).forEach((tensor) => flow(tensor.name, RESPONSE, now.rate));
    const nodes: Node[] = [
        { id: REQUEST, title: "Request", note: `${rate(now.rate)}/s`, isEnd: true },
        ...steps.map((step, i) => {
            const calls = recentCalls(step.model_name);
            return { ...modelNode(step.model_name, calls ? `${rate(calls.rate)}/s · ${duration(calls.mean_us)}` : undefined), id: stepId(i), isBad: !!calls?.failed };
        }),
        { id: RESPONSE, title: "Response", note: now.p50 ? `p50 ${duration(now.p50.us)}` : "", isEnd: true },
    ];
    const shownEdges = [...edges.values()].map((edge) => ({ ...edge, label: edge.rate ? `${rate(edge.rate)}/s` : "", title: edge.tensors.map(visible).join(", ") }));
    return (
        <Panel title={visible(props.name)} wide aside={<a href={modelHref(props.name)}>Model</a>} note="Tensors flow from left to right. Under a model: calls per second and mean time of a call.">
            <Graph label={`Flow of ${props.name}`} nodes={nodes} edges={shownEdges} />
        </Panel>
    );
}

/** What a model calls, as far as the stream has seen it. */
function Calls(props: { name: string }) {
    void sample.value;
    const seen = detail.value?.model === props.name ? Object.keys(detail.value.calls) : [];
    if (!seen.length) {
        return <Empty title="No calls seen."><p><strong><Text>{props.name}</Text></strong> has called no other model. Calls appear here as they are made.</p></Empty>;
    }
    const nodes: Node[] = [modelNode(props.name)];
    const edges: Edge[] = [];
    for (const callee of seen) {
        const calls = recentCalls(callee);
        nodes.push({ ...modelNode(callee), isBad: !!calls?.failed });
        edges.push({ from: props.name, to: callee, label: calls ? `${rate(calls.rate)}/s` : "", rate: calls?.rate ?? 0, title: calls ? `mean ${duration(calls.mean_us)}` : "" });
    }
    return (
        <Panel title={`Calls of ${visible(props.name)}`} wide note="Models that it has called, with calls per second.">
            <Graph label={`Calls of ${props.name}`} nodes={nodes} edges={edges} />
        </Panel>
    );
}

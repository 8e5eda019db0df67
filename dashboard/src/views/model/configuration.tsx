/** What a model takes and returns, and its complete configuration. */

import { useSignal } from "@preact/signals";
import { modelPath } from "../../api";
import { Panel, Text } from "../../parts/blocks";
import { Copy } from "../../parts/copy";
import { useLoaded } from "../../state/load";
import { server } from "../../state/store";

interface Metadata {
    inputs?: Tensor[];
    outputs?: Tensor[];
    platform?: string;
}

interface Tensor {
    name: string;
    datatype: string;
    shape: (number | string)[];
}

type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
type Config = { [name: string]: Value };

export function Configuration(props: { model: string }) {
    const metadata = useLoaded<Metadata>(modelPath(props.model)).value;
    const config = useLoaded<Config>(`${modelPath(props.model)}/config`).value;
    const mayExplain = server.value?.allowed.statistics.allowed !== false;
    const explained = useLoaded<{ completed_fields?: string[] }>(mayExplain ? `${modelPath(props.model)}/explain` : "").value;
    const error = metadata.error ?? config.error;
    return (
        <div class="panels">
            {error && !config.value && (
                <Panel title="No configuration" wide>
                    <p>The server has none for this model now: <Text>{error}</Text></p>
                </Panel>
            )}
            {metadata.value && (
                <>
                    <Tensors title="Inputs" tensors={metadata.value.inputs ?? []} />
                    <Tensors title="Outputs" tensors={metadata.value.outputs ?? []} />
                </>
            )}
            {config.value && <Fields config={config.value} completed={explained.value?.completed_fields ?? []} />}
        </div>
    );
}

function Tensors(props: { title: string; tensors: readonly Tensor[] }) {
    return (
        <Panel title={props.title}>
            {props.tensors.length ? (
                <div class="scroll" tabIndex={0} role="region" aria-label={`${props.title} of the model`}>
                    <table class="data">
                        <thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Shape</th></tr></thead>
                        <tbody>
                            {props.tensors.map((each) => (
                                <tr key={each.name}>
                                    <th scope="row"><code><Text>{each.name}</Text></code></th>
                                    <td><Text>{each.datatype}</Text></td>
                                    <td class="shape">{each.shape.map((size) => (Number(size) < 0 ? "any" : size)).join(" × ") || "scalar"}</td>
                                </tr>
                            ))}
                        </tbody>
                    </table>
                </div>
            ) : (
                <p class="quiet-text">The model names none.</p>
            )}
        </Panel>
    );
}

function Fields(props: { config: Config; completed: readonly string[] }) {
    const showsAll = useSignal(false);
    const completed = new Set(props.completed);
    const entries = Object.entries(props.config).filter(([, value]) => showsAll.value || !isEmpty(value));
    const hidden = Object.values(props.config).filter(isEmpty).length;
    const aside = (
        <div class="buttons">
            {hidden > 0 && (
                <button type="button" class="quiet small" aria-pressed={showsAll.value} onClick={() => (showsAll.value = !showsAll.value)}>
                    {showsAll.value ? "Hide empty fields" : `Show ${hidden} empty fields`}
                </button>
            )}
            <Copy text={JSON.stringify(props.config, null, 2)} label="Copy as JSON">Copy as JSON</Copy>
        </div>
    );
    return (
        <Panel title="Configuration" wide aside={aside} note={completed.size ? "Fields with a mark are not in config.pbtxt: the server has completed them." : undefined}>
            <dl class="config">
                {entries.map(([name, value]) => (
                    <div key={name} class={completed.has(name) ? "is-completed" : ""}>
                        <dt><Text>{name}</Text>{completed.has(name) && <span class="tag">completed</span>}</dt>
                        <dd><Tree value={value} depth={0} completed={within(name, completed)} /></dd>
                    </div>
                ))}
            </dl>
        </Panel>
    );
}

const NO_FIELDS: ReadonlySet<string> = new Set();

/** Of names such as `dynamic_batching.preferred_batch_size`, what is behind the point. */
function within(name: string, completed: ReadonlySet<string>): ReadonlySet<string> {
    return new Set([...completed].filter((each) => each.startsWith(`${name}.`)).map((each) => each.slice(name.length + 1)));
}

function isEmpty(value: Value): boolean {
    if (value === null || value === "" || value === 0 || value === false || value === "0") return true;
    return typeof value === "object" && Object.values(value).every(isEmpty);
}

/** A value as it would be in config.pbtxt, with less punctuation. */
function Tree(props: { value: Value; depth: number; completed: ReadonlySet<string> }) {
    const { value, depth, completed } = props;
    if (value === null || typeof value !== "object") return <span class={`scalar ${typeof value}`}><Text>{String(value)}</Text></span>;
    const list = Array.isArray(value);
    if (list && value.every((each) => each === null || typeof each !== "object")) {
        return <span class="scalar"><Text>{value.length ? `[${value.join(", ")}]` : "none"}</Text></span>;
    }
    const entries = list ? value.map((each, i) => [String(i + 1), each] as const) : Object.entries(value).filter(([, each]) => depth > 1 || !isEmpty(each));
    if (!entries.length) return <span class="scalar">{list ? "none" : "{ }"}</span>;
    return (
        <dl class={list ? "tree list" : "tree"}>
            {entries.map(([name, each]) => (
                <div key={name}>
                    <dt><Text>{name}</Text>{completed.has(name) && <span class="tag">completed</span>}</dt>
                    <dd><Tree value={each} depth={depth + 1} completed={NO_FIELDS} /></dd>
                </div>
            ))}
        </dl>
    );
}

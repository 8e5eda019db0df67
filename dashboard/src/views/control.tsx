/** Load, reload and unload models, where the server allows it. */

import { useSignal } from "@preact/signals";
import type { ModelRow } from "../live";
import { post } from "../api";
import { visible } from "../format";
import { Empty, healthOf, HealthMark, NotAllowed, Panel, Text } from "../parts/blocks";
import { Command } from "../parts/copy";
import { ask } from "../parts/dialog";
import { modelHref } from "../routes";
import { models, server } from "../state/store";

const PAGE = 100;

export function Control() {
    const shown = server.value;
    const filter = useSignal("");
    const most = useSignal(PAGE);
    if (!shown || !models.value) return <p class="waiting">Waiting for the server…</p>;
    const allowed = shown.allowed["model-repository"];
    const isExplicit = shown.model_control_mode === "explicit";
    const rows = models.value.filter((row) => row.name.toLowerCase().includes(filter.value.toLowerCase()));
    return (
        <>
            <h1>Control</h1>
            {!allowed.allowed && <NotAllowed what="Models cannot be loaded or unloaded from here." reason={allowed.reason} asksForKey={allowed.asks_for_key} />}
            {allowed.allowed && !isExplicit && <Mode mode={shown.model_control_mode} />}
            <div class="panels"><Panel title="Models" wide aside={<label><span class="out-of-sight">Filter by name</span><input type="search" placeholder="Filter" value={filter.value} onInput={(event) => (filter.value = event.currentTarget.value)} /></label>}>
                {rows.length ? (
                    <>
                        <ul class="rows">{rows.slice(0, most.value).map((row) => <Row key={row.name} row={row} canChange={allowed.allowed && isExplicit} />)}</ul>
                        {rows.length > most.value && <button type="button" class="quiet" onClick={() => (most.value += PAGE)}>Show {Math.min(PAGE, rows.length - most.value)} more of {rows.length}</button>}
                    </>
                ) : (
                    <Empty title={models.value.length ? "No model matches." : "The repository has no models."} />
                )}
            </Panel></div>
        </>
    );
}

function Mode(props: { mode: string }) {
    return (
        <NotAllowed what="Loads and unloads are off." reason={props.mode === "poll" ? "The server follows the files of the repository (mode poll)." : "The server loads all models at its start (mode none)."}>
            <p>To load and unload from here, start it with:</p>
            <Command text="naiad serve --model-repository models --model-control-mode=explicit --load-model='*'" />
        </NotAllowed>
    );
}

function Row(props: { row: ModelRow; canChange: boolean }) {
    const { row } = props;
    const { health, reason } = healthOf(row);
    const isLoaded = row.versions.some((each) => each.state === "READY");
    return (
        <li>
            <div class="row-name">
                <a href={modelHref(row.name)}><Text>{row.name}</Text></a>
                <HealthMark health={health} />
                {reason && <p class="row-reason"><Text>{reason}</Text></p>}
            </div>
            {props.canChange && health !== "busy" && (
                <div class="buttons">
                    <button type="button" aria-label={`${isLoaded ? "Reload" : "Load"} ${visible(row.name)}`} onClick={() => askLoad(row.name, isLoaded)}>{isLoaded ? "Reload" : "Load"}</button>
                    {isLoaded && <button type="button" class="quiet" aria-label={`Unload ${visible(row.name)}`} onClick={() => askUnload(row.name)}>Unload</button>}
                </div>
            )}
        </li>
    );
}

function path(model: string, action: string): string {
    return `v2/repository/models/${encodeURIComponent(model)}/${action}`;
}

function askLoad(model: string, isLoaded: boolean): void {
    ask({
        title: isLoaded ? "Reload the model?" : "Load the model?",
        text: <p><strong><Text>{model}</Text></strong> {isLoaded ? "is read again from the repository. Until the new one is ready, the present one serves." : "is read from the repository and serves as soon as it is ready."}</p>,
        action: isLoaded ? "Reload" : "Load",
        run: async () => {
            await post(path(model, "load"), {});
            return `${model} is loaded.`;
        },
    });
}

function askUnload(model: string): void {
    ask({
        title: "Unload the model?",
        text: <p>Requests for <strong><Text>{model}</Text></strong> fail from then on. Requests that are in the server are finished.</p>,
        action: "Unload",
        isDangerous: true,
        run: async () => {
            await post(path(model, "unload"), {});
            return `${model} is unloaded.`;
        },
    });
}

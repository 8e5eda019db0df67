/** Try a model: a form for its inputs, its outputs as people look at them, and the request as code. */

import { useEffect, useMemo } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { ApiError, apiKey } from "../api";
import { NotAllowed, Text } from "../parts/blocks";
import { server } from "../state/store";
import { ClassLabels } from "./class_labels";
import { CodePanel } from "./code/code_panel";
import { Form } from "./form/form";
import { formOf } from "./kept_forms";
import { LoadPanel } from "./load_panel";
import { Result } from "./result/result";
import { RunState } from "./result/run_state";
import type { ModelDescription } from "./wire/model";
import { loadDescription } from "./wire/requests";

type Loaded = { phase: "loading" } | { phase: "failed"; message: string; isRefused: boolean } | { phase: "ready"; model: ModelDescription };

export function Playground(props: { model: string; version?: string }) {
    const loaded = useSignal<Loaded>({ phase: "loading" });
    const attempt = useSignal(0);
    useEffect(() => {
        const stop = new AbortController();
        loaded.value = { phase: "loading" };
        loadDescription(props.model, props.version, stop.signal).then(
            (model) => (loaded.value = { phase: "ready", model }),
            (error: unknown) => {
                if (stop.signal.aborted) return;
                const isRefused = error instanceof ApiError && (error.status === 401 || error.status === 403);
                const message = error instanceof ApiError ? error.message : error instanceof TypeError ? "The server does not answer." : String((error as Error).message);
                loaded.value = { phase: "failed", message, isRefused };
            },
        );
        return () => stop.abort();
    }, [props.model, props.version, attempt.value, apiKey.value]);
    const inference = server.value?.allowed.inference;
    if (inference && !inference.allowed) return <NotAllowed what="You cannot send requests to this model." reason={inference.reason} asksForKey={inference.asks_for_key} />;
    switch (loaded.value.phase) {
        case "loading":
            return <p class="waiting" role="status">Reading the model's metadata…</p>;
        case "failed":
            if (loaded.value.isRefused) return <NotAllowed what="You cannot see this model." reason={loaded.value.message} asksForKey />;
            return (
                <div class="playground">
                    <p class="problem" role="alert"><Text>{loaded.value.message}</Text></p>
                    <p><button type="button" onClick={() => attempt.value++}>Try again</button></p>
                </div>
            );
        case "ready":
            return <Ready key={`${props.model}/${props.version ?? ""}`} model={loaded.value.model} version={props.version} />;
    }
}

function Ready(props: { model: ModelDescription; version: string | undefined }) {
    const form = useMemo(() => formOf(props.model, props.version), [props.model, props.version]);
    const run = useMemo(() => new RunState(form, props.version), [form, props.version]);
    const labels = useMemo(() => new ClassLabels(props.model.name), [props.model.name]);
    useEffect(() => () => run.cancel(), [run]);
    return (
        <div class="playground">
            <Form form={form} run={run} />
            <div class="pg-answer-side">
                <Result run={run} labels={labels} />
                <CodePanel form={form} version={props.version} />
                <LoadPanel form={form} version={props.version} />
            </div>
        </div>
    );
}

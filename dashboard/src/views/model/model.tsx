/** One model: what it does now, its configuration, its versions, and the playground. */

import { Empty, healthOf, HealthMark, NotAllowed, Text } from "../../parts/blocks";
import { Playground } from "../../playground/playground";
import { MODEL_TABS, modelHref, route, type ModelTab } from "../../routes";
import { models, rowOf, server } from "../../state/store";
import { Configuration } from "./configuration";
import { Now } from "./now";
import { Versions } from "./versions";

const TITLES: Record<ModelTab, string> = { now: "Now", config: "Configuration", versions: "Versions", try: "Try it" };

export function Model() {
    const { model, tab } = route.value;
    const row = rowOf(model);
    if (!row) return models.value ? <Unknown name={model} /> : <p class="waiting">Waiting for the server…</p>;
    const { health, reason } = healthOf(row);
    return (
        <article class="model">
            <nav class="crumbs" aria-label="Path"><a href="#/">Models</a></nav>
            <header class="title">
                <h1><Text>{model}</Text></h1>
                <HealthMark health={health} />
                {row.backend && <span class="kind"><Text>{row.backend}</Text></span>}
            </header>
            {reason && <p class="problem"><Text>{reason}</Text></p>}
            <nav class="tabs" aria-label="Parts of this model">
                {MODEL_TABS.map((each) => (
                    <a key={each} href={modelHref(model, each)} aria-current={each === tab ? "page" : undefined}>{TITLES[each]}</a>
                ))}
            </nav>
            <Part key={`${model}/${tab}`} model={model} tab={tab} />
        </article>
    );
}

function Part(props: { model: string; tab: ModelTab }) {
    const inference = server.value?.allowed.inference;
    switch (props.tab) {
        case "now":
            return <Now model={props.model} />;
        case "config":
            return <Configuration model={props.model} />;
        case "versions":
            return <Versions model={props.model} />;
        case "try":
            if (inference && !inference.allowed) return <NotAllowed what="No requests from here." reason={inference.reason} asksForKey={inference.asks_for_key} />;
            return <Playground model={props.model} />;
    }
}

function Unknown(props: { name: string }) {
    return (
        <Empty title="There is no such model.">
            <p>The server has no model <strong><Text>{props.name}</Text></strong> that this page may see.</p>
            <p><a href="#/">All models</a></p>
        </Empty>
    );
}

/** Small pieces that views are made of: figures, panels, states, empty places. */

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import type { ModelRow } from "../live";
import { visible } from "../format";
import { KeyForm } from "./key_form";

export function Figure(props: { label: string; value: string; unit?: string; note?: string; tone?: "bad" | "warn" }) {
    return (
        <div class={`figure ${props.tone ?? ""}`}>
            <dt>{props.label}</dt>
            <dd>
                <span class="value">{props.value}</span>
                {props.unit && <span class="unit"> {props.unit}</span>}
                {props.note && <span class="note">{props.note}</span>}
            </dd>
        </div>
    );
}

export function Panel(props: { title: string; note?: ComponentChildren; aside?: ComponentChildren; wide?: boolean; children: ComponentChildren }) {
    const id = useId(); // Not made of the title: names of models differ in characters that ids do not have.
    return (
        <section class={props.wide ? "panel wide" : "panel"} aria-labelledby={id}>
            <header>
                <h2 id={id}><Text>{props.title}</Text></h2>
                {props.aside}
            </header>
            {props.note && <p class="panel-note">{props.note}</p>}
            {props.children}
        </section>
    );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
    return (
        <div class="empty">
            <p class="empty-title">{props.title}</p>
            {props.children}
        </div>
    );
}

/** Text of others: a name, a message, a log line. Never markup, and control characters are visible. */
export function Text(props: { children: string }) {
    return <bdi>{visible(props.children)}</bdi>; // Names that are written from right to left do not move what is beside them.
}

export type Health = "ready" | "part" | "busy" | "failed" | "off";
const HEALTH_TEXT: Record<Health, string> = {
    ready: "Ready",
    part: "Partly ready",
    busy: "Loading",
    failed: "Failed",
    off: "Not loaded",
};

/** One word for the states of a model's versions, and why it is not ready. */
export function healthOf(row: ModelRow): { health: Health; reason: string } {
    const states = row.versions.map((each) => each.state);
    const failed = row.versions.find((each) => each.state === "UNAVAILABLE" && each.reason && each.reason !== "unloaded");
    const reason = failed?.reason ?? "";
    if (states.some((state) => state === "LOADING" || state === "UNLOADING")) return { health: "busy", reason };
    if (states.includes("READY")) return { health: failed ? "part" : "ready", reason };
    return { health: failed ? "failed" : "off", reason };
}

export function HealthMark(props: { health: Health }) {
    return <span class={`health ${props.health}`}>{HEALTH_TEXT[props.health]}</span>;
}

/** Why a control is not here, and the field for a key if one may bring it back. */
export function NotAllowed(props: { what: string; reason: string | undefined; asksForKey?: boolean | undefined; children?: ComponentChildren }) {
    return (
        <div class="not-allowed">
            <p>
                <strong>{props.what}</strong> <Text>{props.reason ?? "The server does not allow it for this client."}</Text>
            </p>
            {props.asksForKey && <KeyForm action="Use the key" />}
            {props.children}
        </div>
    );
}

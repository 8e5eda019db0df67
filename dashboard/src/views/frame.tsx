/** What is around every view: the name, the ways to the views, the state of the connection. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { age, visible } from "../format";
import { Dialog, Notice } from "../parts/dialog";
import { Text } from "../parts/blocks";
import { KeyForm } from "../parts/key_form";
import { route, viewHref, type View } from "../routes";
import { connection } from "../state/connection";
import { server } from "../state/store";

const WAYS: readonly [View, string][] = [
    ["overview", "Overview"],
    ["pipeline", "Pipelines"],
    ["traffic", "Traffic"],
    ["rollout", "Rollouts"],
    ["control", "Control"],
];

export function Frame(props: { children: ComponentChildren }) {
    const main = useRef<HTMLElement>(null);
    const shown = route.value;
    const place = `${shown.view} ${shown.model}`;
    const isFirst = useRef(true);
    useEffect(() => {
        const view = WAYS.find(([each]) => each === shown.view)?.[1];
        document.title = `${shown.model ? visible(shown.model) : view} · naiad`;
        if (isFirst.current) isFirst.current = false;
        else scrollTo(0, 0);
    }, [place]);
    const skip = (event: Event) => {
        event.preventDefault(); // The address behind "#" names the view.
        main.current?.focus();
    };
    return (
        <>
            <a class="skip" href="#page" onClick={skip}>Skip to the content</a>
            <header class="top">
                <div class="top-row">
                    <a class="brand" href="#/"><Mark />naiad</a>
                    <nav aria-label="Views">
                        {WAYS.map(([view, text]) => (
                            <a key={view} href={viewHref(view)} aria-current={isCurrent(view, shown.view) ? "page" : undefined}>{text}</a>
                        ))}
                    </nav>
                    <ConnectionMark />
                </div>
            </header>
            <Away />
            <main ref={main} tabIndex={-1} id="main">{connection.value.phase === "refused" ? <Refused /> : props.children}</main>
            <footer class="bottom">
                {server.value && (
                    <p>
                        <Text>{`${server.value.name} ${server.value.version}`}</Text>, started {new Date(server.value.started_ms).toLocaleString()}
                    </p>
                )}
                <p><a href="docs">API</a></p>
            </footer>
            <Notice />
            <Dialog />
        </>
    );
}

function isCurrent(way: View, shown: View): boolean {
    return way === shown || (way === "overview" && shown === "model");
}

function Mark() {
    return (
        <svg class="mark" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
            <path d="M3 8c3-4 6-4 9 0s6 4 9 0" />
            <path d="M3 16c3-4 6-4 9 0s6 4 9 0" />
        </svg>
    );
}

function ConnectionMark() {
    const { phase } = connection.value;
    const text = { connecting: "Connecting", open: "Live", lost: "Away", refused: "No access" }[phase];
    return <p class={`connection ${phase}`} role="status">{text}</p>;
}

/** The server is away: what is shown is old. */
function Away() {
    const now = connection.value;
    const tick = useSignal(0);
    useEffect(() => {
        if (now.phase !== "lost") return;
        const timer = setInterval(() => tick.value++, 1000);
        return () => clearInterval(timer);
    }, [now.phase]);
    if (now.phase !== "lost") return null;
    void tick.value;
    const since = Date.now() - now.since_ms;
    if (since < 900 && tick.value === 0) return null;
    return (
        <div class="away" role="alert">
            <p>
                <strong>The server is away.</strong> <Text>{now.reason}</Text> The page shows what it knew before, and connects again by itself.
            </p>
            <p class="since" aria-hidden="true">for {age(since)}</p>
        </div>
    );
}

function Refused() {
    const now = connection.value;
    if (now.phase !== "refused") return null;
    const needsKey = now.status === 401 || now.status === 403;
    return (
        <section class="refused" aria-labelledby="refused-title">
            <h1 id="refused-title">{needsKey ? "This server asks for a key" : "The server has no live stream for this page"}</h1>
            <p><Text>{now.message}</Text></p>
            {needsKey && <KeyForm action="Open" />}
        </section>
    );
}

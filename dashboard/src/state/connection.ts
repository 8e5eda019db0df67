/** The connection to the live stream: it is opened for the view, and again and again if the server dies. */

import { effect, signal } from "@preact/signals";
import { ApiError, apiKey } from "../api";
import { route } from "../routes";
import { readEvents } from "./event_stream";
import { detail, server, take } from "./store";

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 5000;
/** Without any event for so long, the connection is taken for dead. A sample comes every second. */
const SILENCE_MS = 15_000;

export type Connection =
    | { phase: "connecting" }
    | { phase: "open" }
    /** The server is away; the page tries again. */
    | { phase: "lost"; since_ms: number; reason: string }
    /** The server answers, but not with the stream: `message` says why. */
    | { phase: "refused"; status: number; message: string };

export const connection = signal<Connection>({ phase: "connecting" });

/** The query of the stream for what the page shows. */
function query(): string {
    const shown = route.value;
    const fields = new URLSearchParams();
    if (shown.model && shown.view !== "rollout" && shown.tab !== "try") fields.set("model", shown.model);
    if (shown.view === "traffic" && server.value?.allowed.logging.allowed) fields.set("log", "true");
    const text = fields.toString();
    return text ? `?${text}` : "";
}

/** Keep the stream open as long as the page lives. */
export function connect(): void {
    let opened: string | null = null;
    let stop = new AbortController();
    effect(() => {
        const wanted = query();
        if (opened === `${wanted} ${apiKey.value}`) return;
        opened = `${wanted} ${apiKey.value}`;
        stop.abort();
        stop = new AbortController();
        detail.value = null;
        void follow(`v2/live${wanted}`, stop.signal);
    });
}

async function follow(path: string, signal: AbortSignal): Promise<void> {
    let wait_ms = FIRST_WAIT_MS;
    while (!signal.aborted) {
        let reason = ""; // What the server says before it goes.
        let isRefused = false;
        try {
            await readOnce(path, signal, () => (wait_ms = FIRST_WAIT_MS), (text) => (reason = text));
        } catch (error) {
            if (signal.aborted) return;
            if (error instanceof ApiError && error.status < 500) {
                isRefused = true;
                connection.value = { phase: "refused", status: error.status, message: error.message };
            } else {
                reason ||= error instanceof ApiError ? error.message : "It does not answer.";
            }
        }
        if (signal.aborted) return;
        if (!isRefused) lost(reason || "The connection has ended.");
        await sleep(wait_ms, signal);
        wait_ms = Math.min(MAX_WAIT_MS, wait_ms * 1.6);
    }
}

/** Read the stream until it ends. `onSample` is called for each sample: only then the connection is one that works. */
async function readOnce(path: string, signal: AbortSignal, onSample: () => void, onReason: (text: string) => void): Promise<void> {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
        await readEvents(
            path,
            AbortSignal.any([signal, silence.signal]),
            () => (connection.value = { phase: "open" }),
            (name, data) => {
                clearTimeout(timer);
                timer = setTimeout(() => silence.abort(), SILENCE_MS);
                if (name === "gone") onReason((JSON.parse(data) as { reason: string }).reason);
                else take(name, data);
                if (name === "sample") onSample();
            },
        );
    } finally {
        clearTimeout(timer);
        silence.abort(); // After an event that cannot be read, the connection is still open.
    }
}

function lost(reason: string): void {
    const before = connection.value;
    // The first reason says more than those of the attempts that follow.
    if (before.phase !== "lost") connection.value = { phase: "lost", since_ms: Date.now(), reason };
}

function sleep(duration_ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
        const end = () => {
            clearTimeout(timer);
            signal.removeEventListener("abort", end);
            resolve();
        };
        const timer = setTimeout(end, duration_ms);
        signal.addEventListener("abort", end);
    });
}

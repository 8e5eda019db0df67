/** The connection to the live stream: it is opened for the view, and again and again if the server dies. */

import { effect, signal } from "@preact/signals";
import { ApiError, apiKey } from "../api";
import { route } from "../routes";
import { readEvents } from "./event_stream";
import { detail, server, take } from "./store";

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 5000;
/**
 * Without any event for so long, the connection is taken for dead. It is looked for by the clock on the wall, which goes
 * on while a computer sleeps: timers do not.
 */
const SILENCE_MS = 15_000;
const LOOK_MS = 2000;
/** A page that nobody has seen for so long asks for samples less often. */
const UNSEEN_AFTER_MS = 30_000;
/** Short enough that rates stay without a gap. */
const UNSEEN_INTERVAL_MS = 5000;

export type Connection =
    | { phase: "connecting" }
    | { phase: "open" }
    /** The server is away; the page tries again. */
    | { phase: "lost"; since_ms: number; reason: string }
    /** The server answers, but not with the stream: `message` says why. */
    | { phase: "refused"; status: number; message: string };

export const connection = signal<Connection>({ phase: "connecting" });

/** Held by each page of this server in the browser while it has a stream. */
const LOCK = "naiad-live";
/** Over HTTP/1.1 a browser opens six connections to a server, for all of its tabs: more streams would leave none. */
const MAX_STREAMS_OF_BROWSER = 4;

/** Whether the page has been hidden for a while. */
const isUnseen = signal(false);
/** Whether the page is hidden, and its connection is needed by other pages. */
const isPaused = signal(false);

function watchVisibility(): void {
    let timer = 0;
    const change = () => {
        clearTimeout(timer);
        if (document.hidden) timer = setTimeout(() => (isUnseen.value = true), UNSEEN_AFTER_MS);
        else isUnseen.value = isPaused.value = false;
    };
    document.addEventListener("visibilitychange", change);
    change();
}

/** Absent where the page is not of https or localhost. */
function locks(): LockManager | undefined {
    return (globalThis.navigator as { locks?: LockManager } | undefined)?.locks;
}

async function pauseIfCrowded(): Promise<void> {
    const held = (await locks()?.query())?.held ?? [];
    if (held.filter((each) => each.name === LOCK).length > MAX_STREAMS_OF_BROWSER && document.hidden) isPaused.value = true;
}

/** The query of the stream for what the page shows. */
function query(): string {
    const shown = route.value;
    const fields = new URLSearchParams();
    if (shown.model && shown.view !== "rollout" && shown.tab !== "try") fields.set("model", shown.model);
    if (shown.view === "traffic" && server.value?.allowed.logging.allowed) fields.set("log", "true");
    if (isUnseen.value) fields.set("interval_ms", String(UNSEEN_INTERVAL_MS));
    const text = fields.toString();
    return text ? `?${text}` : "";
}

/** Keep the stream open as long as the page lives. */
export function connect(): void {
    let opened: string | null = null;
    let stop = new AbortController();
    watchVisibility();
    effect(() => {
        const wanted = `${isPaused.value ? "paused" : query()} ${apiKey.value}`;
        if (opened === wanted) return;
        opened = wanted;
        stop.abort();
        stop = new AbortController();
        if (isPaused.value) return;
        if (detail.peek()?.model !== route.value.model) detail.value = null;
        void follow(`v2/live${query()}`, stop.signal);
    });
}

async function follow(path: string, signal: AbortSignal): Promise<void> {
    let wait_ms = FIRST_WAIT_MS;
    void locks()?.request(LOCK, { mode: "shared" }, () => new Promise((resolve) => signal.addEventListener("abort", resolve)));
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
    let heard_ms = Date.now();
    const watch = setInterval(() => {
        if (Date.now() - heard_ms > SILENCE_MS) silence.abort();
        if (document.hidden) void pauseIfCrowded();
    }, LOOK_MS);
    try {
        await readEvents(
            path,
            AbortSignal.any([signal, silence.signal]),
            () => (connection.value = { phase: "open" }),
            (name, data) => {
                heard_ms = Date.now();
                if (name === "gone") onReason((JSON.parse(data) as { reason: string }).reason);
                else take(name, data);
                if (name === "sample") onSample();
            },
        );
    } finally {
        clearInterval(watch);
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

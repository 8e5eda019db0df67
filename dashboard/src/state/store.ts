/** What the page knows of the server: signals that the events of the live stream set. */

import { batch, signal, type Signal } from "@preact/signals";
import type { DetailEvent, FailuresEvent, LogEvent, ModelRow, ModelsEvent, SampleEvent, ServerEvent } from "../live";
import { VersionHistory } from "./version_history";
import { EMPTY, summarize, type Summary } from "./summary";

const MAX_FAILURES = 500;
const MAX_LOG_LINES = 2000;
const MANY_VERSIONS = 200;
/** Rates of calls are over this time. */
const CALLS_MS = 6000;

export type Failure = FailuresEvent["failures"][number];
export type LogLine = LogEvent["lines"][number] & { id: number };

export const server = signal<ServerEvent | null>(null);
/** null until the server has sent the list. */
export const models = signal<ModelRow[] | null>(null);
export const modelsLeftOut = signal(0);
/** Changes with every sample. */
export const sample = signal<SampleEvent | null>(null);
/** CPU seconds per second, of all processes of the server. */
export const busyCores = signal<number | null>(null);
export const detail = signal<DetailEvent | null>(null);
export const failures = signal<Failure[]>([]);
export const failuresLeftOut = signal(0);
export const logLines = signal<LogLine[]>([]);
export const logLeftOut = signal(0);
/** Requests per second of all models, sample by sample. */
export const totalRates = signal<number[]>([]);
/** Times of the samples that a difference to the one before is known of, oldest first. */
export let sampleTimes: number[] = [];

const histories = new Map<string, Map<string, VersionHistory>>();
const summaries = new Map<string, Signal<Summary>>();
/** Models whose summary has to change with time, as they served something within the last minute. */
const active = new Set<string>();
let nextLine = 0;
let seenCalls: { at_ms: number; calls: DetailEvent["calls"] }[] = [];

/** The present figures of a model, over its versions. */
export function summaryOf(model: string): Signal<Summary> {
    let found = summaries.get(model);
    if (!found) summaries.set(model, (found = signal(EMPTY)));
    return found;
}

/** The histories of a model by version. They change with `summaryOf(model)`. */
export function historiesOf(model: string): ReadonlyMap<string, VersionHistory> {
    return histories.get(model) ?? new Map<string, VersionHistory>();
}

export function rowOf(model: string): ModelRow | undefined {
    return models.value?.find((row) => row.name === model);
}

const HANDLERS: Record<string, (data: never) => void> = {
    server: onServer,
    models: onModels,
    sample: onSample,
    detail: onDetail,
    failures: onFailures,
    log: onLog,
};

/** Take an event of the stream. Events with other names are of newer servers. */
export function take(name: string, data: string): void {
    const handler = HANDLERS[name];
    if (handler) batch(() => handler(JSON.parse(data) as never));
}

function onServer(event: ServerEvent): void {
    if (server.value && server.value.started_ms !== event.started_ms) forget();
    server.value = event;
}

function onModels(event: ModelsEvent): void {
    const before = new Set(models.value?.map((row) => row.name));
    models.value = event.models.toSorted((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    modelsLeftOut.value = event.left_out;
    const rows = new Map(event.models.map((row) => [row.name, row]));
    for (const name of new Set([...histories.keys(), ...summaries.keys()])) {
        const row = rows.get(name);
        // Of models that the list has no room for, only the figures are known.
        if (row) forgetOldVersions(name, row);
        else if (event.left_out === 0 || before.has(name)) forgetModel(name);
    }
}

/** A page that stays open for weeks meets many models and versions: those that are gone leave nothing. */
function forgetModel(name: string): void {
    histories.delete(name);
    active.delete(name);
    summaryOf(name).value = EMPTY;
    summaries.delete(name);
}

function forgetOldVersions(name: string, row: ModelRow): void {
    const versions = new Set(row.versions.map((each) => each.version));
    const known = histories.get(name);
    for (const version of [...(known?.keys() ?? [])]) if (!versions.has(version)) known?.delete(version);
}

/** A server that was started again begins at zero. */
function forget(): void {
    histories.clear();
    active.clear();
    sampleTimes = [];
    totalRates.value = [];
    sample.value = null;
    busyCores.value = null;
    detail.value = null;
    for (const each of summaries.values()) each.value = EMPTY;
}

/** The server's clock was set back: what was counted until then has no place in time. */
function restartClock(): void {
    for (const versions of histories.values()) for (const history of versions.values()) history.restart();
    for (const model of active) summaryOf(model).value = summarize([...historiesOf(model).values()], []);
    active.clear();
    sampleTimes = [];
    totalRates.value = [];
    sample.value = null;
}

function onSample(event: SampleEvent): void {
    if (sample.value && event.time_ms <= sample.value.time_ms) restartClock();
    const previous = sample.value;
    const before_ms = previous?.time_ms ?? 0;
    let versionCount = 0;
    for (const versions of histories.values()) versionCount += versions.size;
    const capacity = versionCount > MANY_VERSIONS ? 90 : 300;
    for (const [key, totals] of Object.entries(event.versions)) {
        const slash = key.lastIndexOf("/");
        const model = key.slice(0, slash);
        historyOf(model, key.slice(slash + 1)).push(totals, event.time_ms, before_ms, capacity);
        active.add(model);
    }
    if (previous) sampleTimes = [...sampleTimes.slice(-299), event.time_ms];
    const cpu_s = previous ? event.process.cpu_s - previous.process.cpu_s : -1;
    if (previous && cpu_s >= 0) busyCores.value = (cpu_s * 1000) / (event.time_ms - before_ms);
    sample.value = event;
    let total = 0;
    for (const model of [...active]) {
        const versions = [...historiesOf(model).values()];
        for (const history of versions) history.expire(event.time_ms);
        const summary = summarize(versions, sampleTimes);
        summaryOf(model).value = summary;
        total += summary.lastRate;
        if (!versions.some((history) => history.isActive)) active.delete(model);
    }
    if (previous) totalRates.value = [...totalRates.value.slice(-299), total];
}

function historyOf(model: string, version: string): VersionHistory {
    let versions = histories.get(model);
    if (!versions) histories.set(model, (versions = new Map()));
    let history = versions.get(version);
    if (!history) versions.set(version, (history = new VersionHistory()));
    return history;
}

function onDetail(event: DetailEvent): void {
    const isSame = detail.value?.model === event.model;
    detail.value = event;
    const now_ms = Date.now();
    seenCalls = [...(isSame ? seenCalls : []).filter((each) => each.at_ms > now_ms - CALLS_MS), { at_ms: now_ms, calls: event.calls }];
}

/** What the detailed model called in the last seconds; null if the stream has not said it yet. */
export function recentCalls(callee: string): { rate: number; failed: number; mean_us: number | null } | null {
    void sample.value; // Without calls there is no detail, but time goes on.
    const first = seenCalls[0];
    const last = seenCalls[seenCalls.length - 1];
    const now = last?.calls[callee];
    if (!first || !last || !now) return null;
    const before = first.calls[callee] ?? { success: 0, failure: 0, duration_ns: 0 };
    const seconds = (Date.now() - first.at_ms) / 1000;
    const calls = now.success + now.failure - before.success - before.failure;
    const total = now.success + now.failure;
    if (calls < 0 || seconds < 0.5) return { rate: 0, failed: 0, mean_us: total ? now.duration_ns / total / 1000 : null };
    const mean_ns = calls ? (now.duration_ns - before.duration_ns) / calls : total ? now.duration_ns / total : null;
    return {
        rate: calls / seconds,
        failed: Math.max(0, now.failure - before.failure) / seconds,
        mean_us: mean_ns === null ? null : Math.max(0, mean_ns) / 1000,
    };
}

function onFailures(event: FailuresEvent): void {
    failures.value = [...event.failures.toReversed(), ...failures.value].slice(0, MAX_FAILURES);
    failuresLeftOut.value += event.left_out;
}

function onLog(event: LogEvent): void {
    const added = event.lines.map((line) => ({ ...line, id: nextLine++ }));
    logLines.value = [...logLines.value, ...added].slice(-MAX_LOG_LINES);
    logLeftOut.value += event.left_out;
}

// A server whose live stream is what a test says: hostile names, a thousand models, a restart, no rights.

import { readFile } from "node:fs/promises";
import http from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const FILES = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../src/naiad/frontend/dashboard/files");
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8" };
/** The policy of the real server. */
const POLICY =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; img-src 'self' data: blob:; " +
    "media-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
export const BOUNDS_US = [100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000];
const YES = { allowed: true };

export class ScriptedServer {
    /** `options`: models (rows), allowed, or rights (from the key to allowed), mode, prefix, key, answers (path to JSON), interval_ms, started_ms. */
    constructor(options = {}) {
        Object.assign(this, { prefix: "/", models: [], allowed: {}, mode: "explicit", key: "", answers: {}, interval_ms: 200, started_ms: 1_790_000_000_000, rights: () => this.allowed }, options);
        this.totals = new Map();
        this.streams = new Set();
        this.requests = [];
        this.clock_ms = Date.now();
        this.cpu_s = 0;
        /** Called before each sample; it changes `totals` by `serve`. */
        this.script = () => {};
    }

    async start(port = 0) {
        this.server = http.createServer((request, response) => void this.answer(request, response).catch((error) => response.destroy(error)));
        await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
        this.port = this.server.address().port;
        this.url = `http://127.0.0.1:${this.port}${this.prefix}`;
        this.timer = setInterval(() => this.tick(), this.interval_ms);
        return this;
    }

    /** End like a process that is killed. */
    async stop() {
        clearInterval(this.timer);
        this.streams.clear();
        this.server.closeAllConnections();
        await new Promise((resolve) => this.server.close(resolve));
    }

    /** Count requests of `model/version` that took about `latency_us`. */
    serve(key, requests, latency_us = 1500, failures = 0) {
        const old = this.totals.get(key) ?? emptyVersion();
        const bucket = BOUNDS_US.findIndex((bound) => latency_us <= bound);
        const latency_counts = [...old.latency_counts];
        latency_counts[bucket < 0 ? BOUNDS_US.length : bucket] += requests;
        const spent_ns = requests * latency_us * 1000;
        this.totals.set(key, {
            ...old,
            success: old.success + requests,
            failure: old.failure + failures,
            executions: old.executions + Math.ceil(requests / 3),
            inferences: old.inferences + requests,
            request_ns: old.request_ns + spent_ns,
            queue_ns: old.queue_ns + spent_ns * 0.3,
            compute_input_ns: old.compute_input_ns + spent_ns * 0.05,
            compute_ns: old.compute_ns + spent_ns * 0.55,
            compute_output_ns: old.compute_output_ns + spent_ns * 0.05,
            latency_counts,
        });
        this.changed.add(key);
    }

    /** Send an event to every page that looks. */
    send(name, data) {
        for (const stream of this.streams) stream.write(event(name, data));
    }

    serverEvent(allowed = this.allowed) {
        const categories = ["inference", "model-repository", "rollout", "logging", "statistics"];
        return {
            name: "scripted",
            version: "1.0",
            extensions: [],
            started_ms: this.started_ms,
            process_count: 1,
            core_count: 4,
            model_control_mode: this.mode,
            ready: true,
            allowed: Object.fromEntries(categories.map((name) => [name, allowed[name] ?? YES])),
        };
    }

    sampleEvent(keys) {
        return {
            time_ms: this.clock_ms,
            process: { cpu_s: this.cpu_s, resident_bytes: 321_000_000, in_flight: 3 },
            versions: Object.fromEntries([...keys].map((key) => [key, this.totals.get(key)])),
        };
    }

    changed = new Set();

    tick() {
        this.clock_ms = Math.max(this.clock_ms + 1, Date.now());
        this.cpu_s += 0.1;
        this.script(this);
        if (this.streams.size && !this.isSilent) this.send("sample", this.sampleEvent(this.changed));
        this.changed.clear();
    }

    async answer(request, response) {
        const url = new URL(request.url, "http://localhost");
        if (!url.pathname.startsWith(this.prefix)) return end(response, 404, { error: "not behind the prefix" });
        const at = url.pathname.slice(this.prefix.length);
        const body = await text(request);
        this.requests.push({ method: request.method, path: at, query: url.search, body, key: request.headers.authorization });
        if (at === "" || at.startsWith("dashboard/")) return this.file(response, at === "" ? "index.html" : at.slice(10));
        if (this.key && request.headers.authorization !== `Bearer ${this.key}`) return end(response, 401, { error: "this server needs a key" });
        if (at === "v2/live") return this.open(response, this.rights(request.headers.authorization));
        const found = this.answers[`${request.method} ${at}`] ?? this.answers[at];
        if (found === undefined) return end(response, 404, { error: `unknown path ${at}` });
        end(response, 200, typeof found === "function" ? found(body) : found);
    }

    open(response, allowed) {
        response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
        response.write(event("server", this.serverEvent(allowed)));
        response.write(event("models", { models: this.models, left_out: 0 }));
        response.write(event("sample", this.sampleEvent(this.totals.keys())));
        this.streams.add(response);
        response.on("close", () => this.streams.delete(response));
    }

    async file(response, name) {
        const type = TYPES[path.extname(name)];
        if (!type || name.includes("/")) return end(response, 404, { error: "no such file" });
        response.writeHead(200, { "content-type": type, "content-security-policy": POLICY, "x-content-type-options": "nosniff" });
        response.end(await readFile(path.join(FILES, name)));
    }
}

export function row(name, more = {}) {
    return { name, backend: "onnxruntime", versions: [{ version: "1", state: "READY", reason: "" }], ...more };
}

function emptyVersion() {
    const counters = ["success", "failure", "executions", "inferences", "request_ns", "queue_ns", "compute_input_ns", "compute_ns", "compute_output_ns", "cache_hits", "cache_misses", "pending", "executing"];
    return { ...Object.fromEntries(counters.map((name) => [name, 0])), failures: {}, latency_counts: Array(BOUNDS_US.length + 1).fill(0), bounds_us: BOUNDS_US, batch_sizes: { 1: 1 } };
}

function event(name, data) {
    return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

function end(response, status, tree) {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(tree));
}

async function text(request) {
    let found = "";
    for await (const part of request) found += part;
    return found;
}

// How the page keeps its stream: what ends it, how soon it tries again, which key it sends, where the server is.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./modules.mjs";

const page = "http://localhost:8000/#/";
globalThis.location = new URL(page);
globalThis.addEventListener = () => {};
globalThis.document = { hidden: false, addEventListener: () => {} };
const SAMPLE = `event: sample\ndata: ${JSON.stringify({ time_ms: 1, process: { cpu_s: 0, resident_bytes: 0, in_flight: 0 }, versions: {} })}\n\n`;

/**
 * Connect with the answers of a server, one for each attempt: a status with a text, or the text of a stream. Returns how
 * long the page waited before each further attempt, the phases between them, and the signals of its requests.
 */
async function attempts(answers) {
    const { connect, connection } = await load("state/connection");
    const { setTimeout: real, fetch } = globalThis;
    const waits = [];
    const phases = [];
    const signals = [];
    await new Promise((resolve) => {
        globalThis.setTimeout = (call, duration_ms) => {
            waits.push(duration_ms);
            phases.push(connection.value.phase);
            if (signals.length < answers.length) return real(call, 0);
            resolve();
            return 0;
        };
        globalThis.fetch = async (_, options) => {
            const answer = answers[signals.length];
            signals.push(options.signal);
            if (answer === null) throw new TypeError("fetch failed");
            if (typeof answer === "number") return new Response('{"error":"no"}', { status: answer });
            return new Response(new ReadableStream({ start: (body) => (body.enqueue(new TextEncoder().encode(answer)), answer.endsWith("{\n\n") || body.close()) }));
        };
        connect();
    });
    Object.assign(globalThis, { setTimeout: real, fetch });
    return { waits, phases, signals };
}

test("the page waits longer after each stream that brought no sample", async () => {
    const { waits } = await attempts([": hello\n\n", 'event: gone\ndata: {"reason":"x"}\n\n', ": hello\n\n", SAMPLE, ": hello\n\n"]);
    assert.deepEqual(waits.map(Math.round), [500, 800, 1280, 500, 800]);
});

test("an event that cannot be read closes its connection", async () => {
    const { signals } = await attempts(["event: sample\ndata: {\n\n", ": hello\n\n"]);
    assert.deepEqual(signals.map((signal) => signal.aborted), [true, true]);
});

test("a server that refused and then died is away", async () => {
    const { phases } = await attempts([401, null, 403, 503]);
    assert.deepEqual(phases, ["refused", "lost", "refused", "lost"]);
});

test("the server is where the page is, behind any prefix", async () => {
    for (const path of ["/", "/naiad/", "/dashboard/", "/a/dashboard/"]) {
        globalThis.location = new URL(path, page);
        const { address } = await load("api");
        assert.equal(address("v2/live"), `http://localhost:8000${path}v2/live`);
    }
    globalThis.location = new URL(page);
});

test("a copied key may have characters that no header has", async () => {
    const { setApiKey, keyHeaders } = await load("api");
    setApiKey(" \ufeffsecret\u200b\n");
    assert.equal(new Headers(keyHeaders()).get("authorization"), "Bearer secret");
});

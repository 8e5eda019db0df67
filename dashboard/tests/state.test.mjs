// What the page makes of the stream: counters that begin again, percentiles, texts, the places of a graph.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./modules.mjs";

// Modules of the page read the address when they are imported.
globalThis.location = new URL("http://localhost:8000/prefix/#/");
globalThis.addEventListener = () => {};

const { VersionHistory } = await load("state/version_history");
const { percentile } = await load("state/histogram");
const { EventParser } = await load("state/event_stream");
const { layOut } = await load("views/pipeline_layout");
const { parseRoute, modelHref } = await load("routes");
const format = await load("format");
const { take, summaryOf, totalRates } = await load("state/store");

function totals(success, more = {}) {
    const zero = { failure: 0, executions: 0, inferences: 0, request_ns: 0, queue_ns: 0, compute_input_ns: 0, compute_ns: 0, compute_output_ns: 0, cache_hits: 0, cache_misses: 0, pending: 0, executing: 0 };
    return { ...zero, success, failures: {}, latency_counts: [success, 0], bounds_us: [100], batch_sizes: {}, ...more };
}

test("a counter that began again gives its value, never a negative rate", () => {
    const history = new VersionHistory();
    history.push(totals(1000), 1000, 0, 300);
    history.push(totals(1010), 2000, 1000, 300);
    history.push(totals(4), 3000, 2000, 300);
    history.push(totals(7), 4000, 3000, 300);
    assert.deepEqual(history.points.map((point) => point.success), [10, 4, 3]);
    assert.deepEqual(history.points.map((point) => point.latency_counts[0]), [10, 4, 3]);
    assert.equal(history.rate("success", 4000, 4), 17 / 4);
});

test("what was served while the page was away is not the rate of one interval", () => {
    const history = new VersionHistory();
    history.push(totals(0), 1000, 0, 300);
    history.push(totals(100_000), 61_000, 1000, 300);
    assert.equal(history.points.length, 0);
});

test("the window is the last minute, also when points are left out", () => {
    const history = new VersionHistory();
    for (let i = 0; i <= 100; i++) {
        history.push(totals(i * 10), 1000 + i * 1000, i * 1000, 30);
        history.expire(1000 + i * 1000);
    }
    assert.equal(history.points.length, 30);
    assert.equal(history.window[0], 300);
    history.expire(101_000 + 59_000);
    assert.equal(history.window[0], 10);
    history.expire(101_000 + 60_000);
    assert.equal(history.window[0], 0);
    assert.equal(history.isActive, false);
});

test("percentiles are linear within a bucket, and open at the end", () => {
    assert.deepEqual(percentile([0, 10, 0], [100, 200], 0.5), { us: 150, isOver: false });
    assert.deepEqual(percentile([1, 0, 1], [100, 200], 0.99), { us: 200, isOver: true });
    assert.equal(percentile([0, 0], [100], 0.5), null);
});

test("events are found however the bytes are cut", () => {
    const text = "event: server\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: comment\n\nevent: sample\ndata:2\n\n";
    for (let size = 1; size < text.length; size++) {
        const seen = [];
        const parser = new EventParser((name, data) => seen.push([name, data]));
        for (let i = 0; i < text.length; i += size) parser.push(text.slice(i, i + size));
        assert.deepEqual(seen, [["server", '{"a":\n1}'], ["sample", "2"]], `in parts of ${size}`);
    }
});

test("a long line in many pieces is put together once", () => {
    const seen = [];
    const parser = new EventParser((name, data) => seen.push(data.length));
    parser.push("data: ");
    for (let i = 0; i < 10_000; i++) parser.push("x".repeat(1024));
    parser.push("\r");
    parser.push("\n\n");
    assert.deepEqual(seen, [10_000 * 1024]);
});

function sample(time_ms, versions) {
    take("sample", JSON.stringify({ time_ms, process: { cpu_s: 1, resident_bytes: 1, in_flight: 0 }, versions }));
}

test("a clock that was set back stops nothing", () => {
    sample(3_600_000, { "back/1": totals(100), "still/1": totals(5) });
    sample(3_601_000, { "back/1": totals(110) });
    sample(5000, { "back/1": totals(120) });
    assert.equal(summaryOf("back").value.total, 120);
    assert.equal(summaryOf("back").value.isRecent, false);
    sample(6000, { "back/1": totals(140) });
    assert.equal(totalRates.value.at(-1), 20);
    assert.equal(summaryOf("back").value.isRecent, true);
});

test("models that the list has no room for have rates, and no leap", () => {
    const list = (names) => take("models", JSON.stringify({ models: names.map((name) => ({ name, backend: "", versions: [] })), left_out: 1 }));
    list(["listed", "gone"]);
    sample(10_000, { "listed/1": totals(1), "gone/1": totals(1), "left/1": totals(1_000_000) });
    list(["listed"]);
    sample(11_000, { "left/1": totals(1_000_030) });
    assert.equal(totalRates.value.at(-1), 30);
    assert.equal(summaryOf("gone").value.total, 0);
});

test("layers follow the edges, and a cycle ends", () => {
    const { nodes, layers } = layOut(["a", "b", "c", "d"], [["a", "b"], ["b", "c"], ["a", "c"], ["c", "a"], ["c", "d"]]);
    assert.deepEqual([..."abcd"].map((id) => nodes.get(id).layer), [0, 1, 2, 3]);
    assert.equal(layers, 4);
});

test("addresses keep names of any kind", () => {
    for (const name of ["digits", "a/b", "100%", "<b>", "é ü", "models/x/try"]) {
        assert.deepEqual(parseRoute(modelHref(name, "try")), { view: "model", model: name, tab: "try" });
    }
    assert.equal(parseRoute("#/models/%E0%A4").model, "%E0%A4");
    assert.equal(parseRoute("#/nowhere").view, "overview");
});

test("numbers have units", () => {
    assert.deepEqual([0, 412.3, 1280, 15_000, 2_500_000].map((us) => format.duration(us).replace("\u202f", " ")), ["0 µs", "412 µs", "1.28 ms", "15 ms", "2.5 s"]);
    assert.deepEqual([0, 999, 12_400, 3_000_000].map((each) => format.count(each).replace("\u202f", " ")), ["0", "999", "12.4 k", "3 M"]);
    assert.equal(format.duration(null), "–");
    assert.equal(format.bytes(1536).replace("\u202f", " "), "1.5 KiB");
    assert.equal(format.visible("a\u202eb\u0007\n"), "a\\u202eb\\u0007\n");
    assert.equal(format.visible("a\u061cb\u2028c\u2060"), "a\\u061cb\\u2028c\\u2060");
});

test("models and versions that are gone leave nothing, however long the page stays open", async () => {
    const store = await load("state/store");
    const listed = (name, versions) => store.take("models", JSON.stringify({ models: name ? [{ name, backend: "", versions: versions.map((version) => ({ version, state: "READY", reason: "" })) }] : [], left_out: 0 }));
    const sampled = (time_ms, key, success) => store.take("sample", JSON.stringify({ time_ms, process: { cpu_s: 0, resident_bytes: 0, in_flight: 0 }, versions: { [key]: totals(success) } }));
    for (let version = 1; version <= 200; version++) {
        listed("m", [String(version)]);
        sampled(version * 1000, `m/${version}`, 1);
    }
    assert.deepEqual([...store.historiesOf("m").keys()], ["200"]);
    const before = store.summaryOf("m");
    listed("", []);
    assert.equal(store.historiesOf("m").size, 0);
    assert.notEqual(store.summaryOf("m"), before);
    assert.equal(before.peek().total, 0);
});

// Values, requests and responses of the playground, without a browser.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "../modules.mjs";

const { fromFp16, toFp16, fromBf16, toBf16 } = await load("playground/tensor/half");
const { parseExact, writeExact } = await load("playground/tensor/json");
const { parseNumber, tensorFromJson, tensorFromTexts, shownNumber, shownBytes, InputProblem } = await load("playground/tensor/elements");
const { summarize, largest } = await load("playground/tensor/statistics");
const { encodeCall, MAX_JSON_BYTES } = await load("playground/wire/infer_body");
const { decodeAnswer, errorText } = await load("playground/wire/infer_answer");
const { splitTime, stepParts } = await load("playground/wire/timing");
const { runLoad, percentile } = await load("playground/wire/load");
const { describeModel } = await load("playground/wire/model");

function call(inputs, more = {}) {
    return { id: "7", inputs, outputs: [], parameters: {}, isStream: false, isAnswerBinary: false, ...more };
}

function refusal(work) {
    try {
        work();
    } catch (error) {
        return error.message;
    }
    throw new Error("nothing was refused");
}

test("every FP16 and BF16 value survives both directions", () => {
    for (let bits = 0; bits < 1 << 16; bits++) {
        const half = fromFp16(bits);
        if (!Number.isNaN(half)) assert.equal(toFp16(half), bits, `FP16 ${bits}`);
        const brain = fromBf16(bits);
        if (!Number.isNaN(brain)) assert.equal(toBf16(brain), bits, `BF16 ${bits}`);
    }
    assert.ok(Number.isNaN(fromFp16(toFp16(NaN))) && Number.isNaN(fromBf16(toBf16(NaN))));
    assert.equal(fromFp16(toFp16(1e6)), Infinity);
    assert.equal(fromFp16(toFp16(2049)), 2048, "ties go to the even neighbor");
    assert.equal(fromFp16(toFp16(2051)), 2052);
});

test("JSON keeps 64-bit integers, NaN and strings that look like either", () => {
    const text = '{"a": [9007199254740993, -12, NaN, -Infinity, 1e3, 2.5], "b": "9007199254740993 NaN \\" Infinity", "NaN": 0}';
    const value = parseExact(text);
    assert.deepEqual(value.a, [9007199254740993n, -12, NaN, -Infinity, 1000, 2.5]);
    assert.equal(value.b, '9007199254740993 NaN " Infinity');
    assert.equal(value.NaN, 0);
    assert.equal(writeExact([9007199254740993n, "x", null, true, { a: undefined, b: 1 }]), '[9007199254740993, "x", null, true, {"b": 1}]');
    assert.throws(() => parseExact("{"), SyntaxError);
});

test("a wrong value is refused with the value and what is right", () => {
    assert.equal(refusal(() => parseNumber("UINT8", "300")), "'300' is no UINT8: write an integer from 0 to 255");
    assert.equal(refusal(() => parseNumber("INT32", "1.5")), "'1.5' is no INT32: write an integer from -2147483648 to 2147483647");
    assert.equal(refusal(() => parseNumber("FP32", "")), "an empty value is no FP32: write a number such as 0.5, or nan");
    assert.equal(refusal(() => tensorFromJson("x", "FP32", [2], "[1, 2, 3]")), "the list has the shape [3], but the input [2]");
    assert.match(refusal(() => tensorFromJson("x", "FP32", [2], "[1, ")), /^this is no JSON: /);
    assert.match(refusal(() => tensorFromJson("x", "INT8", [1], '[{"a": 1}]')), /write numbers in lists/);
    assert.throws(() => tensorFromTexts("x", "FP32", [3], ["1"]), InputProblem);
    let deep = "1";
    for (let depth = 0; depth < 40; depth++) deep = `[${deep}]`;
    assert.match(refusal(() => tensorFromJson("x", "FP32", [-1], deep)), /nested more than 16 deep/);
});

test("numbers of people are read", () => {
    assert.equal(parseNumber("INT64", "9007199254740993"), 9007199254740993n);
    assert.equal(parseNumber("INT32", " +7 "), 7);
    assert.equal(parseNumber("UINT8", "7.0"), 7);
    assert.equal(parseNumber("FP32", "0,5"), 0.5);
    assert.equal(parseNumber("FP32", "-inf"), -Infinity);
    assert.equal(parseNumber("BOOL", "True"), 1);
});

test("JSON decides free dimensions", () => {
    assert.deepEqual(tensorFromJson("x", "FP32", [-1, 2], "[[1, 2], [3, 4], [5, 6]]").shape, [3, 2]);
    assert.deepEqual(tensorFromJson("x", "FP32", [-1, 2], "[1, 2, 3, 4]").shape, [2, 2]);
    assert.deepEqual(tensorFromJson("x", "INT64", [-1, -1], "[1, 2, 3]").shape, [1, 3]);
    assert.deepEqual(tensorFromJson("x", "BYTES", [1], '"one text"').shape, [1]);
    assert.ok(Number.isNaN(tensorFromJson("x", "FP32", [2], "[null, 1]").values[0]));
});

test("shown numbers are the shortest of their datatype", () => {
    assert.equal(shownNumber(Math.fround(0.1), "FP32"), "0.1");
    assert.equal(shownNumber(fromFp16(toFp16(0.1)), "FP16"), "0.1");
    assert.equal(shownNumber(0.1, "FP64"), "0.1");
    assert.equal(shownNumber(Math.fround(1 / 3), "FP32"), "0.33333334");
    assert.equal(shownBytes(new Uint8Array([255, 0])), "2 bytes: ff 00");
});

test("few values are JSON, many and those without JSON are binary", () => {
    const small = encodeCall(call([tensorFromTexts("x", "INT64", [2], ["1", "9007199254740993"])]));
    assert.match(small.body, /"data": \[1, 9007199254740993\]/);
    const values = new Float32Array(MAX_JSON_BYTES / 4 + 1).fill(0.5);
    const large = encodeCall(call([{ name: "x", datatype: "FP32", shape: [values.length], values }]));
    const length = Number(large.headers["Inference-Header-Content-Length"]);
    assert.equal(large.body.length, length + values.length * 4);
    assert.deepEqual(large.offsets, [length]);
    for (const [datatype, text] of [["FP16", "1"], ["BF16", "1"], ["FP32", "nan"]]) {
        assert.ok(encodeCall(call([tensorFromTexts("x", datatype, [1], [text])])).body instanceof Uint8Array, datatype);
    }
    assert.ok(encodeCall(call([{ name: "x", datatype: "BYTES", shape: [1], values: [new Uint8Array([255])] }])).body instanceof Uint8Array);
});

test("outputs as binary are read at any offset, and a short body is refused", () => {
    const bytes = (...values) => Uint8Array.from(values);
    const document = JSON.stringify({
        id: "é", model_name: "m", model_version: "1",
        outputs: [
            { name: "a", datatype: "BYTES", shape: [2], parameters: { binary_data_size: 9 } },
            { name: "b", datatype: "INT64", shape: [1], parameters: { binary_data_size: 8 } },
            { name: "c", datatype: "FP16", shape: [1], parameters: { binary_data_size: 2 } },
        ],
    });
    const head = new TextEncoder().encode(document);
    const body = Uint8Array.from([...head, ...bytes(1, 0, 0, 0, 65, 0, 0, 0, 0), ...bytes(1, 0, 0, 0, 0, 0, 32, 0), ...bytes(0, 0x3c)]);
    const { tensors, id } = decodeAnswer(body, head.length);
    assert.equal(id, "é");
    assert.deepEqual(tensors[0].values.map((each) => each.length), [1, 0]);
    assert.equal(tensors[1].values[0], 9007199254740993n);
    assert.equal(tensors[2].values[0], 1);
    assert.throws(() => decodeAnswer(body.subarray(0, body.length - 1), head.length), /ends inside of the output 'c'/);
});

test("a JSON response keeps what JSON can hold", () => {
    const text = '{"outputs": [{"name": "n", "datatype": "INT64", "shape": [2], "data": [9007199254740993, 1]}, {"name": "f", "datatype": "FP32", "shape": [2], "data": [null, NaN]}]}';
    const { tensors } = decodeAnswer(new TextEncoder().encode(text));
    assert.deepEqual([...tensors[0].values], [9007199254740993n, 1n]);
    assert.ok([...tensors[1].values].every(Number.isNaN));
    assert.equal(errorText('{"error": "<b>no</b>"}', 400), "<b>no</b>");
    assert.equal(errorText("", 502), "HTTP status 502 without a message");
});

test("a summary counts what is no number, and its bins hold every finite value", async () => {
    const values = Float32Array.from([0, 1, 2, 3, NaN, Infinity, -Infinity, 0]);
    const summary = await summarize(values);
    assert.deepEqual([summary.min, summary.max, summary.mean, summary.zeroCount, summary.nanCount, summary.infiniteCount], [0, 3, 1.2, 2, 1, 2]);
    assert.equal(summary.bins.reduce((sum, each) => sum + each), 5);
    let pauses = 0;
    await summarize(new Float32Array(3 << 20).map((_, index) => index % 7), async () => void pauses++);
    assert.equal(pauses, 4, "two passes of three slices");
    assert.ok(Number.isNaN((await summarize(new Float32Array([NaN]))).min));
    assert.deepEqual(largest([3, 9, NaN, 9, 1], 3), [{ index: 1, value: 9 }, { index: 3, value: 9 }, { index: 0, value: 3 }]);
});

test("the time of a request is the server's parts and the rest", () => {
    const value = 'parse;dur=1.5, queue;dur=0, compute;dur=6, clock;desc="12", step_a;dur=2.5, unknown;dur=3';
    assert.deepEqual(splitTime(10, value).map(({ name, ms }) => [name, ms]), [["parse", 1.5], ["queue", 0], ["compute", 6], ["network", 2.5]]);
    assert.deepEqual(splitTime(10, null).map(({ name, ms }) => [name, ms]), [["request", 10]]);
    assert.deepEqual(stepParts(value).map(({ name, ms }) => [name, ms]), [["a", 2.5]]);
});

test("a load ends after its time, and after twenty errors", async () => {
    let clock = 0;
    const send = async () => void (clock += 50);
    const made = await runLoad(send, 1, new AbortController().signal, () => {}, () => clock, 10);
    assert.deepEqual([made.count, made.perSecond, made.p50Ms, made.p99Ms], [200, 20, 50, 50]);
    const failed = await runLoad(async () => { throw new Error("no"); }, 4, new AbortController().signal, () => {});
    assert.ok(failed.errorCount >= 20 && failed.errorCount < 24 && failed.firstError === "no");
    const stop = new AbortController();
    stop.abort();
    assert.equal((await runLoad(send, 4, stop.signal, () => {})).count, 0);
    assert.ok(Number.isNaN(percentile([], 0.5)));
});

test("a model without metadata or with an unknown datatype is refused with its name", () => {
    assert.throws(() => describeModel({ name: "m" }, {}), /'m' has no metadata/);
    assert.throws(() => describeModel({ name: "m", inputs: [{ name: "x", datatype: "FP8", shape: [1] }] }, {}), /'x' has the datatype 'FP8'/);
    const model = describeModel({ name: "m", inputs: [{ name: "x", datatype: "FP32", shape: [-1, 4] }] }, undefined);
    assert.equal(model.notes.length, 1);
});

test("warm-up samples are examples unless they are files of the server", () => {
    const input = (more) => ({ x: { data_type: "TYPE_FP32", dims: ["4"], ...more } });
    const model = describeModel(
        { name: "m", inputs: [{ name: "x", datatype: "FP32", shape: [-1, 4] }] },
        { max_batch_size: 2, model_warmup: [{ name: "z", inputs: input({ zero_data: true }) }, { name: "f", inputs: input({ input_data_file: "a" }) }] },
    );
    assert.deepEqual(model.warmups, [{ name: "z", inputs: [{ name: "x", shape: [1, 4], fill: "zero" }] }]);
    assert.match(model.notes[0], /'f' is a file on the server/);
});

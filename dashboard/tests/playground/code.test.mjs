// The code that the playground writes: names and values with quotes and markup stay what they are, keys stay out.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";
import { load } from "../modules.mjs";

const { curlCode, quoted } = await load("playground/code/curl");
const { tritonCode, requestsCode } = await load("playground/code/python");
const { literal, list } = await load("playground/code/python_values");
const { fetchCode } = await load("playground/code/javascript");
const { callForCode, bodyOf } = await load("playground/code/code_request");
const { tensorFromTexts } = await load("playground/tensor/elements");

const HOSTILE = `it's "$(touch /tmp/x)" \`x\` \\ \n <b> %s é 𝄞`;

function request(inputs, more = {}, call = {}) {
    return {
        root: "https://host:8443/prefix/", model: "a b/'<c>", version: "2", pictures: new Map(), hasKey: false,
        call: { id: "", inputs, outputs: [], parameters: {}, isStream: false, isAnswerBinary: false, ...call }, ...more,
    };
}

test("the shell gets every text as it is", () => {
    for (const text of [HOSTILE, "'", "", "''", "$HOME", "-x", "!a"]) {
        assert.equal(execFileSync("bash", ["-c", `printf %s ${quoted(text)}`], { encoding: "utf8" }), text);
    }
});

test("Python gets every value as it is", () => {
    const value = { [HOSTILE]: [HOSTILE, true, false, null, 1.5, -3, 9007199254740993n, ["\u2028", "\u0000"]] };
    const printed = execFileSync("python3", ["-c", `import json; print(json.dumps(${literal(value)}))`], { encoding: "utf8" });
    assert.deepEqual(JSON.parse(printed.replace("9007199254740993", "0")), { [HOSTILE]: [HOSTILE, true, false, null, 1.5, -3, 0, ["\u2028", "\u0000"]] });
    assert.equal(list(Array(60).fill("12345")).split("\n").every((line) => line.length < 118), true);
});

test("code compiles, and addresses keep a proxy's prefix", () => {
    const inputs = [tensorFromTexts(HOSTILE, "BYTES", [1], [HOSTILE]), tensorFromTexts("x", "FP32", [2, 2], ["0.1", "1", "-2", "3"])];
    for (const isStream of [false, true]) {
        const one = request(inputs, { hasKey: true }, { isStream, parameters: { sequence_id: 9007199254740993n, temperature: 0.5 }, outputs: [{ name: HOSTILE, classCount: isStream ? 0 : 3 }] });
        for (const { text } of [tritonCode(one), requestsCode(one)]) {
            execFileSync("python3", ["-c", "import sys; compile(sys.stdin.read(), 'copied', 'exec')"], { input: text });
            assert.match(text, /os\.environ\["NAIAD_API_KEY"\]/);
            assert.match(text, /host:8443\/prefix/);
        }
        execFileSync("bash", ["-n"], { input: curlCode(one).text });
        assert.match(curlCode(one).text, /https:\/\/host:8443\/prefix\/v2\/models\/a%20b%2F'\\''%3Cc%3E\/versions\/2\/infer/);
        execFileSync(process.execPath, ["--check", "--input-type=module", "-"], { input: fetchCode(one).text });
        assert.match(fetchCode(one).text, /9007199254740993/);
    }
});

test("large inputs are read from the file that the page offers", () => {
    const values = new Float32Array(5000).fill(0.25);
    const one = request([{ name: "x", datatype: "FP32", shape: [1, 5000], values }, tensorFromTexts("n", "BYTES", [1], ["a"])]);
    const body = bodyOf(one);
    const [, offset] = /np\.frombuffer\(body, np\.float32, 5000, (\d+)\)\.reshape\(\(1, 5000\)\)/.exec(tritonCode(one).text);
    assert.equal(new DataView(body.buffer).getFloat32(Number(offset), true), 0.25);
    for (const make of [curlCode, tritonCode, requestsCode, fetchCode]) assert.ok(make(one).needsBody, make.name);
});

test("outputs without a JSON form are asked for as bytes", () => {
    const model = { outputs: [{ name: "y", datatype: "FP16" }, { name: "z", datatype: "FP32" }] };
    const call = request([]).call;
    assert.equal(callForCode({ ...call, id: "page-1" }, model).isAnswerBinary, true);
    assert.equal(callForCode(call, model).id, "");
    assert.equal(callForCode({ ...call, outputs: [{ name: "z" }] }, model).isAnswerBinary, false);
    assert.equal(callForCode({ ...call, outputs: [{ name: "y", classCount: 3 }] }, model).isAnswerBinary, false);
});

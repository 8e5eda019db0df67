// Guesses of the form: editors, pictures, rows, examples; and how outputs are shown.

import assert from "node:assert/strict";
import test from "node:test";
import { load } from "../modules.mjs";

const { editorsFor } = await load("playground/form/editors");
const { parseCsv, tableTensors, takesRows, columnsOf } = await load("playground/form/csv");
const { generated, exampleShape } = await load("playground/form/examples");
const { pictureShape } = await load("playground/picture/layout");
const { resized, fitted, toGray, withoutAlpha } = await load("playground/picture/resize");
const { defaultSettings, restored } = await load("playground/picture/settings");
const { pictureTensor } = await load("playground/picture/to_tensor");
const { examplePixels } = await load("playground/picture/example_picture");
const { formOf, MAX_FORMS, MAX_HELD_BYTES } = await load("playground/kept_forms");
const { ClassLabels, parseLabels, MAX_MODELS, MAX_STORED } = await load("playground/class_labels");
const { viewsFor, classRows, barLengths, maskSize, named } = await load("playground/result/views");
const { boxesOf, guessFormat, areNormalized } = await load("playground/result/boxes");

const input = (shape, datatype = "FP32", name = "x") => ({ name, datatype, shape, isOptional: false, format: "FORMAT_NONE" });
const model = (inputs, more = {}) => ({
    name: "m", platform: "", inputs, outputs: [], isBatched: true, maxBatchSize: 4, isDecoupled: false, isSequence: false,
    features: { names: [], categories: {} }, pictures: "", warmups: [], notes: [], ...more,
});
const refusal = (work) => {
    try {
        work();
    } catch (error) {
        return error.message;
    }
    throw new Error("nothing was refused");
};

test("layouts are guessed from shapes", () => {
    const guess = (shape, datatype) => {
        const found = pictureShape(input(shape, datatype));
        return found && `${found.layout} ${found.channels}`;
    };
    assert.equal(guess([-1, 3, 224, 224]), "NCHW 3");
    assert.equal(guess([-1, 224, 224, 3]), "NHWC 3");
    assert.equal(guess([-1, -1, 3], "UINT8"), "NHWC 3");
    assert.equal(guess([1, 1, 28, 28]), "NCHW 1");
    assert.equal(guess([-1, 28, 28, 1]), "NHWC 1");
    assert.equal(guess([-1, 3, -1, -1]), "NCHW 3");
    assert.equal(guess([4, 640, 3]), "NHWC 3");
    assert.equal(guess([-1, 16]), undefined);
    assert.equal(guess([-1, 3, 224, 224], "INT64"), undefined);
    assert.equal(guess([8, 3, 224, 224]), undefined, "a fixed batch of eight is not one picture");
    assert.equal(guess([-1, 2, 2, 3]), undefined);
});

test("editors fit the input", () => {
    const first = (shape, datatype, name) => editorsFor(input(shape, datatype, name))[0];
    assert.equal(first([-1, 3, 224, 224]), "picture");
    assert.equal(first([-1, 4]), "values");
    assert.equal(first([1], "BYTES"), "text");
    assert.equal(first([1], "BYTES", "JPEG"), "file");
    assert.equal(first([-1], "FP32", "AUDIO"), "audio");
    assert.equal(first([-1, 512], "FP32", "chunk"), "audio");
    assert.equal(first([-1, 1000]), "fill");
    assert.equal(first([], "INT32"), "values");
});

test("scaling keeps constant pixels and sizes", () => {
    const flat = { width: 7, height: 5, channels: 3, data: new Uint8Array(105).fill(77) };
    for (const [width, height] of [[7, 5], [3, 2], [20, 31], [1, 1]]) {
        const made = resized(flat, width, height);
        assert.equal(made.data.length, width * height * 3);
        assert.ok(made.data.every((each) => each === 77));
    }
    const padded = fitted(flat, 10, 10, "pad");
    assert.deepEqual([padded.data[0], padded.data[(5 * 10 + 5) * 3]], [0, 77]);
    assert.deepEqual([...toGray({ width: 1, height: 1, channels: 3, data: Uint8Array.from([255, 0, 0]) }).data], [76]);
    assert.deepEqual([...withoutAlpha(Uint8Array.from([0, 0, 0, 0, 10, 20, 30, 255]), 2, 1).data], [255, 255, 255, 10, 20, 30]);
});

test("settings are the owner's, then what was remembered, never nonsense", () => {
    const one = input([-1, 3, 8, 8]);
    const owned = defaultSettings(one, model([one], { pictures: "x,resize=stretch,scale=255,mean=1/2/3,std=4/5/6" }));
    assert.deepEqual([owned.fit, owned.scale, owned.mean, owned.std], ["stretch", 255, [1, 2, 3], [4, 5, 6]]);
    assert.equal(defaultSettings(one, model([one], { pictures: "other,resize=stretch" })).fit, "crop");
    const kept = restored(owned, '{"colors": "BGR", "std": [0], "width": -3, "fit": "<b>", "layout": "NHWC"}');
    assert.deepEqual([kept.colors, kept.std, kept.width, kept.fit, kept.layout], ["BGR", [4, 5, 6], 0, "stretch", "NHWC"]);
    for (const text of ["null", "[]", "{", "7", null]) assert.deepEqual(restored(owned, text), owned);
});

test("pixels are normalized and put in order", () => {
    const pixels = { width: 2, height: 1, channels: 3, data: Uint8Array.from([255, 0, 51, 0, 255, 102]) };
    const settings = { layout: "NCHW", colors: "RGB", fit: "stretch", scale: 1, mean: [0.5], std: [0.5], width: 0, height: 0 };
    const first = pictureTensor(input([-1, 3, -1, -1]), settings, pixels).tensor;
    assert.deepEqual(first.shape, [1, 3, 1, 2]);
    assert.deepEqual([...first.values].map((each) => Math.round(each * 10) / 10), [1, -1, -1, 1, -0.6, -0.2]);
    const bytes = pictureTensor(input([-1, -1, 3], "UINT8"), { ...settings, layout: "NHWC", colors: "BGR", scale: 255, mean: [0], std: [1] }, pixels).tensor;
    assert.deepEqual([...bytes.values], [51, 0, 255, 102, 255, 0]);
    assert.match(refusal(() => pictureTensor(input([-1, 224, 224, 3]), settings, pixels)), /224 channels: choose the other layout/);
    assert.equal(examplePixels().data.length, 320 * 240 * 3);
});

test("CSV is read as spreadsheets write it", () => {
    assert.deepEqual(parseCsv('\uFEFFa;b\r\n"x;""y""\nz";2\r\n\r\n'), { header: ["a", "b"], rows: [['x;"y"\nz', "2"]] });
    assert.deepEqual(parseCsv("a\tb\n1\t2").rows, [["1", "2"]]);
    assert.match(refusal(() => parseCsv("a,b\n1\n")), /row 1 has 1 values, but the header has 2/);
    assert.match(refusal(() => parseCsv('a\n"x')), /no end/);
    assert.match(refusal(() => parseCsv("")), /there are no rows/);
    assert.match(refusal(() => parseCsv("a\n")), /only a header/);
});

test("columns go to features by name, categories become their index", () => {
    const houses = model([input([-1, 3], "FP32", "X")], { features: { names: ["rooms", "kind", "area"], categories: { kind: ["flat", "house"] } } });
    assert.ok(takesRows(houses));
    const rows = (text) => tableTensors(houses, parseCsv(text));
    const [tensor] = rows("area,kind,other,rooms\n80,house,x,3\n,flat,y,2\n");
    assert.deepEqual([tensor.shape, [...tensor.values]], [[2, 3], [3, 1, 80, 2, 0, NaN]]);
    assert.equal(refusal(() => rows("area,rooms\n1,2")), "there is no column 'kind'; the columns are 'area', 'rooms'");
    assert.match(refusal(() => rows("area,kind,rooms\n1,castle,2")), /row 1, column 'kind': 'castle' is none of 'flat', 'house'/);
    assert.match(refusal(() => rows("area,kind,rooms\nbig,flat,2")), /row 1, column 'area': 'big' is no FP32/);
    assert.match(refusal(() => rows(`area,kind,rooms\n${"1,flat,2\n".repeat(5)}`)), /5 rows, but a request of this model has at most 4/);
});

test("a model with an input for each column takes rows", () => {
    const two = model([input([-1, 1], "INT64", "age"), input([-1, 1], "BYTES", "town")]);
    assert.deepEqual(columnsOf(two), ["age", "town"]);
    const [age, town] = tableTensors(two, parseCsv("town,age\nRome,9007199254740993\nOslo,2"));
    assert.deepEqual([...age.values], [9007199254740993n, 2n]);
    assert.deepEqual(town.values.map((each) => new TextDecoder().decode(each)), ["Rome", "Oslo"]);
});

test("generated values fit the datatype", () => {
    assert.deepEqual([...generated(input([3], "INT64"), [3], "count").values], [0n, 1n, 2n]);
    assert.ok([...generated(input([50], "BOOL"), [50], "random").values].every((each) => each === 0 || each === 1));
    assert.ok([...generated(input([50]), [50], "random").values].every((each) => each >= 0 && each <= 1));
    assert.match(refusal(() => generated(input([-1]), [1e9], "zero")), /choose smaller dimensions/);
    assert.deepEqual(exampleShape(input([-1, -1]), true), [1, 8]);
});

test("views fit the output", () => {
    const tensor = (shape, datatype = "FP32", name = "y") => ({ name, datatype, shape, values: new Float32Array(shape.reduce((a, b) => a * b, 1)) });
    const first = (each, isClassified = false, hasPicture = false) => viewsFor(each, isClassified, hasPicture)[0];
    assert.equal(first(tensor([1, 4])), "table");
    assert.equal(first(tensor([1, 20])), "largest");
    assert.equal(first(tensor([1, 1000000])), "values");
    assert.equal(first(tensor([1, 3, 64, 64])), "picture");
    assert.equal(first(tensor([1, 1, 64, 64]), false, true), "mask");
    assert.equal(first(tensor([7, 4], "FP32", "boxes"), false, true), "boxes");
    assert.equal(first(tensor([7, 4], "FP32", "boxes")), "table");
    assert.equal(first(tensor([0, 4])), "table");
    assert.deepEqual(maskSize(tensor([1, 32, 48, 1])), { height: 32, width: 48 });
    const labels = { name: "y", datatype: "BYTES", shape: [1, 2], values: ["0.5:3:a: <b>b</b>\n", "-1e-7:4"].map((each) => new TextEncoder().encode(each)) };
    assert.equal(first(labels, true), "classes");
    assert.deepEqual(classRows(labels), [[{ value: 0.5, index: 3, label: "a: <b>b</b>\n" }, { value: -1e-7, index: 4, label: "" }]]);
    assert.equal(classRows({ ...labels, values: [new Uint8Array([1])] }), undefined);
    assert.deepEqual(barLengths([0.5, 0.25]), [0.5, 0.25]);
    assert.deepEqual(barLengths([10, 5, -10]), [1, 0.75, 0]);
    assert.deepEqual(barLengths([NaN, Infinity, 1]).map(Number.isFinite), [true, true, true]);
});

test("boxes are drawn where the model means them", () => {
    const boxes = { name: "boxes", datatype: "FP32", shape: [1, 6], values: Float32Array.from([0.5, 0.5, 0.25, 0.25, 0.75, 3]) };
    assert.ok(areNormalized(boxes));
    assert.equal(guessFormat(boxes), "xywh");
    const [box] = boxesOf(boxes, [], "cxcywh", true, { width: 200, height: 100 });
    assert.deepEqual(box.points, [[75, 37.5], [125, 37.5], [125, 62.5], [75, 62.5]]);
    assert.deepEqual([box.score, box.caption], [0.75, "3"]);
    const polygon = { name: "q", datatype: "FP32", shape: [1, 4, 2], values: Float32Array.from([1, 2, 30, 4, 5, 6, 7, 8]) };
    const text = { name: "TEXT", datatype: "BYTES", shape: [1], values: [new TextEncoder().encode("hello")] };
    const [quad] = boxesOf(polygon, [polygon, text], "xyxy", false, { width: 9, height: 9 });
    assert.deepEqual([quad.points[1], quad.caption, quad.score], [[30, 4], "hello", undefined]);
    assert.deepEqual(boxesOf({ ...boxes, values: new Float32Array(6).fill(NaN) }, [], "xyxy", false, { width: 1, height: 1 }), []);
});

test("what was entered stays for the models that were tried last", () => {
    const tried = (name, more) => formOf(model([input([-1, 2])], { name, ...more }));
    const first = tried("first");
    first.inputs[0].texts.value = ["7", "8"];
    assert.deepEqual(tried("first").inputs[0].texts.value, ["7", "8"]);
    assert.notEqual(formOf(first.model, "2"), first, "another version has a form of its own");
    assert.notEqual(tried("first", { inputs: [input([-1, 3])] }), first, "a model that has changed begins anew");
    const again = tried("again");
    for (let number = 1; number < MAX_FORMS; number++) tried(`other ${number}`);
    assert.equal(tried("again"), again);
    for (let number = 0; number < MAX_FORMS; number++) tried(`more ${number}`);
    assert.notEqual(tried("again"), again);
});

test("large forms go first, the newest stays", () => {
    const bytes = { byteLength: MAX_HELD_BYTES / 2 + 1 };
    const fill = (name) => {
        const form = formOf(model([input([1], "BYTES")], { name }));
        form.inputs[0].file.value = { name: "f", bytes };
        return form;
    };
    const one = fill("large one");
    const two = fill("large two");
    assert.equal(fill("large two"), two);
    assert.notEqual(fill("large one"), one);
});

function storage() {
    const kept = new Map();
    Object.defineProperty(globalThis, "localStorage", {
        configurable: true,
        value: { getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => void kept.set(key, text) },
    });
    return kept;
}

test("labels of a file are remembered for the last models, within bounds", async () => {
    const kept = storage();
    const file = (text) => new File([text], "names.txt");
    for (let number = 0; number <= MAX_MODELS; number++) await new ClassLabels(`m${number}`).load(file("cat\r\n\r\n<b>dog</b>\r\n"));
    assert.deepEqual(new ClassLabels("m8").names.value, ["cat", "", "<b>dog</b>"]);
    assert.deepEqual(new ClassLabels("m0").names.value, [], "the oldest are forgotten");
    new ClassLabels("m8").remove();
    assert.deepEqual(new ClassLabels("m8").names.value, []);
    for (const name of ["a", "b", "c"]) await new ClassLabels(name).load(file(`${"x".repeat(99)}\n`.repeat(10_000)));
    const [key] = kept.keys();
    assert.ok(kept.get(key).length < 1.1 * MAX_STORED);
    assert.equal(new ClassLabels("c").names.value.length, 10_000);
    for (const text of ["{", "null", "[1]", '[["c"]]', '[["c", 1]]']) {
        kept.set(key, text);
        assert.deepEqual(new ClassLabels("c").names.value, []);
    }
});

test("a file that has no labels is refused, and those before stay", async () => {
    storage();
    const labels = new ClassLabels("m");
    await labels.load(new File(["\uFEFFcat\ndog"], "names.txt"));
    for (const [content, reason] of [["\n \n", /has no labels/], [new Uint8Array([0, 255]), /is no text in UTF-8/], ["x".repeat(2 << 20), /at most 1 MB/]]) {
        await labels.load(new File([content], "<b>"));
        assert.match(labels.problem.value, reason);
        assert.deepEqual(labels.names.value, ["cat", "dog"]);
    }
    assert.match(refusal(() => parseLabels("a\n".repeat(100_001), "f")), /100,001 lines/);
    assert.deepEqual(named([{ value: 1, index: 1, label: "" }, { value: 1, index: 0, label: "of the server" }, { value: 0, index: 9, label: "" }], ["cat", "dog"]).map((row) => row.label), ["dog", "of the server", ""]);
});

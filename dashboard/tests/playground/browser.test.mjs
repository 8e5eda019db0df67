// The playground of a real server in a real browser. tests/integration/test_playground.py starts both.

import assert from "node:assert/strict";
import { printed, saved } from "./copied_code.mjs";
import { output, send, sendButton, tryIt } from "./server_page.mjs";

const LANGUAGES = ["curl", "Python (tritonclient)", "Python (requests)", "JavaScript"];
const text = new TextDecoder();

/** A tensor's values as code prints them. */
function plain(tensor) {
    return Array.from(tensor.values, (value) => (value instanceof Uint8Array ? text.decode(value) : Number(value)));
}

async function assertCopies(page, answer) {
    for (const language of LANGUAGES) {
        const outputs = await printed(page, language);
        assert.deepEqual(outputs.map(([name]) => name), answer.tensors.map(({ name }) => name), language);
        outputs.forEach(([, shape, values], index) => {
            assert.deepEqual(shape, answer.tensors[index].shape, language);
            assertClose(values, plain(answer.tensors[index]), language);
        });
    }
}

/** Equal texts; numbers that are equal as float32; scores of classes to six digits. */
function assertClose(found, expected, language) {
    assert.equal(found.length, expected.length, language);
    found.forEach((value, index) => {
        if (typeof value === "number") assert.equal(Math.fround(value), Math.fround(expected[index]), `${language}: ${index}`);
        else assert.equal(String(value), expected[index], language);
    });
}

tryIt("a picture gets classes with labels, which are text, and its code gives the same", "scenes", async (page) => {
    const { answer } = await send(page);
    await output(page, "scores").getByText("%").first().waitFor();
    const labels = await output(page, "scores").locator(".pg-bar-label").allTextContents();
    const expected = answer.tensors[0].values.map((each) => /^[^:]*:\d+:(.*)$/.exec(text.decode(each))[1]);
    assert.deepEqual(labels, expected);
    await saved(page, page.getByRole("button", { name: "Save it" }), "example.png");
    await assertCopies(page, answer);
});

tryIt("an own picture is sent as soon as it is chosen, and its settings are remembered", "scenes", async (page) => {
    const file = await saved(page, page.getByRole("button", { name: "Save it" }), "own.png");
    await page.getByText("How its pixels become numbers").click();
    await page.getByRole("combobox", { name: "Values" }).selectOption("ImageNet");
    await page.getByLabel("Fit").selectOption("pad");
    await page.getByLabel("Colors").selectOption("BGR");
    const { answer } = await send(page, () => page.getByLabel("Picture for image").setInputFiles(file));
    await assertCopies(page, answer);
    await page.reload();
    await page.getByText("NCHW, BGR, ImageNet, pad").waitFor();
});

tryIt("a file that is no picture is refused with what to do", "scenes", async (page) => {
    await page.getByLabel("Picture for image").setInputFiles({ name: "<b>.png", mimeType: "image/png", buffer: Buffer.from("text") });
    await page.getByText("the browser cannot read '<b>.png' as a picture").waitFor();
});

tryIt("a picture can be pasted", "scenes", async (page) => {
    await page.locator(".pg-drop").waitFor();
    await send(page, () => page.evaluate(async () => {
        const canvas = new OffscreenCanvas(40, 30);
        canvas.getContext("2d").fillRect(0, 0, 20, 20);
        const transfer = new DataTransfer();
        transfer.items.add(new File([await canvas.convertToBlob()], "pasted.png", { type: "image/png" }));
        document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
    }));
    await page.getByText("pasted.png").waitFor();
});

tryIt("a picture can be dropped", "detector", async (page) => {
    await page.locator(".pg-drop").waitFor();
    const { answer } = await send(page, () => page.evaluate(async () => {
        const canvas = new OffscreenCanvas(50, 20);
        canvas.getContext("2d").fillRect(0, 0, 20, 20);
        const transfer = new DataTransfer();
        transfer.items.add(new File([await canvas.convertToBlob()], "dropped.png", { type: "image/png" }));
        document.querySelector(".pg-drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
    }));
    assert.deepEqual(answer.tensors.find(({ name }) => name === "NEGATIVE").shape, [20, 50, 3]);
});

/** A WAV file of one channel at 8000 Hz: half a second at half the full volume. */
function wave() {
    const file = Buffer.alloc(44 + 8000);
    file.write("RIFF", 0);
    file.writeUInt32LE(36 + 8000, 4);
    file.write("WAVEfmt ", 8);
    file.writeUInt32LE(16, 16);
    file.writeUInt16LE(1, 20);
    file.writeUInt16LE(1, 22);
    file.writeUInt32LE(8000, 24);
    file.writeUInt32LE(16000, 28);
    file.writeUInt16LE(2, 32);
    file.writeUInt16LE(16, 34);
    file.write("data", 36);
    file.writeUInt32LE(8000, 40);
    for (let at = 44; at < file.length; at += 2) file.writeInt16LE(16384, at);
    return file;
}

tryIt("sound of a file has the rate of the model", "sound", async (page) => {
    await page.getByRole("button", { name: "Sound", exact: true }).click();
    await page.getByLabel("Sound file").setInputFiles({ name: "half.wav", mimeType: "audio/wav", buffer: wave() });
    await page.getByText("0.50 s, 8000 samples").waitFor();
    const { answer } = await send(page);
    const [seconds, loudest] = answer.tensors.map(plain);
    assert.equal(seconds[0], 0.5);
    assert.ok(loudest[0] > 0.49 && loudest[0] < 0.6, String(loudest[0]));
    await page.getByLabel("Sound file").setInputFiles({ name: "none.wav", mimeType: "audio/wav", buffer: Buffer.from("text") });
    await page.getByText("the browser cannot read 'none.wav' as sound").waitFor();
});

tryIt("the microphone is recorded, and released when the form is left", "sound", async (page) => {
    await page.getByRole("button", { name: "Sound", exact: true }).click();
    const tracks = () => page.evaluate(() => window.tracks.map((each) => each.readyState));
    await page.evaluate(() => {
        window.tracks = [];
        const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        navigator.mediaDevices.getUserMedia = async (wanted) => {
            const stream = await ask(wanted);
            window.tracks.push(...stream.getTracks());
            return stream;
        };
    });
    await page.getByRole("button", { name: "Record" }).click();
    await page.waitForFunction(() => window.tracks.length === 1);
    await page.waitForTimeout(1500); // The beeps come every half second.
    await page.getByRole("button", { name: "Stop recording" }).click();
    await page.getByText(/recording: \d\.\d\d s, \d+ samples/).first().waitFor();
    assert.deepEqual(await tracks(), ["ended"]);
    const { answer } = await send(page);
    const [seconds, loudest] = answer.tensors.map(plain);
    assert.ok(seconds[0] > 0.9 && seconds[0] < 30, `${seconds[0]} s`);
    assert.ok(loudest[0] > 0.01, `the loudest sample is ${loudest[0]}`);
    await page.getByRole("button", { name: "Record" }).click();
    await page.waitForFunction(() => window.tracks.length === 2);
    await page.getByRole("link", { name: "Configuration" }).click();
    await page.waitForFunction(() => window.tracks.every((each) => each.readyState === "ended"));
}, { permissions: ["microphone"] });

tryIt("a microphone that is not granted is said", "sound", async (page) => {
    await page.getByRole("button", { name: "Sound", exact: true }).click();
    await page.evaluate(() => (navigator.mediaDevices.getUserMedia = async () => Promise.reject(new DOMException("Permission denied", "NotAllowedError"))));
    await page.getByRole("button", { name: "Record" }).click();
    await page.getByText("the browser gives no microphone: Permission denied").waitFor();
    await page.getByRole("button", { name: "Record" }).waitFor();
});

tryIt("boxes, a mask and a picture are drawn", "detector", async (page) => {
    const { answer } = await send(page);
    assert.deepEqual(answer.tensors[0].shape, [3, 4]);
    await page.getByText("2 of 3 boxes").waitFor();
    await page.getByText("<i>hill</i>", { exact: true }).first().waitFor();
    const colors = await page.evaluate(() => Object.fromEntries(["2 boxes over the picture", "MASK as a mask", "NEGATIVE as a picture"].map((label) => {
        const canvas = document.querySelector(`canvas[aria-label="${label}"]`);
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return [label, new Set(new Uint32Array(data.buffer)).size];
    })));
    for (const [label, count] of Object.entries(colors)) assert.ok(count > 20, `${label} has ${count} colors`);
});

tryIt("responses of a stream appear as they come, and the code prints all", "words", async (page) => {
    await page.locator("textarea").fill("a cup of tea");
    const sent = send(page);
    await page.getByText("1 responses so far").or(page.getByText("2 responses so far")).waitFor();
    await sent;
    await page.getByText("4 responses in").waitFor();
    assert.equal(await page.getByRole("region", { name: "Text of all responses" }).locator(".pg-answer").textContent(), "a cup of tea");
    for (const language of LANGUAGES) {
        assert.deepEqual((await printed(page, language)).map(([, , values]) => String(values[0])), ["a", "cup", "of", "tea"], language);
    }
});

tryIt("a stream is cancelled", "words", async (page) => {
    await page.locator("textarea").fill("word ".repeat(400));
    await sendButton(page).click();
    await page.getByText(/^[3-9] responses so far/).waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByText(/responses in .*, cancelled/).waitFor();
    await page.locator("textarea").fill("again");
    await send(page);
    await page.getByText("1 responses in").waitFor();
});

tryIt("names, texts and errors of the server are text, integers are exact", "shout", async (page) => {
    await page.locator("textarea").fill("héllo\n'quoted' $HOME `x`");
    const { answer } = await send(page);
    assert.match(await output(page, "ANSWER").textContent(), /<script>document\.title=1<\/script>/);
    await output(page, "LENGTH").getByText("9007199254741018").waitFor();
    await assertCopies(page, answer);
    await page.locator("textarea").fill("fail");
    await send(page);
    await page.getByRole("alert").getByText("<script>document.title=1</script> is no text").waitFor();
    const shown = await page.locator(".pg-id code").textContent();
    assert.match(shown, /^page-[0-9a-f]{8}$/);
    await page.getByLabel("Fill with example").selectOption("nothing");
    assert.equal(await page.locator("textarea").inputValue(), "");
});

tryIt("wrong values are marked at their field", "sums", async (page) => {
    await page.getByLabel("INPUT0 [0, 1]").fill("1.5");
    await sendButton(page).click();
    await page.getByRole("group", { name: "INPUT0" }).getByText("'1.5' is no INT64").waitFor();
    await page.getByLabel("INPUT0 [0, 1]").fill("9007199254740993");
    await page.getByLabel("INPUT1 [0, 1]").fill("0");
    await send(page);
    await output(page, "OUTPUT0").getByText("9007199254740993").waitFor();
    await page.getByRole("group", { name: "How to enter INPUT0" }).getByRole("button", { name: "JSON" }).click();
    await page.getByLabel("INPUT0 as JSON").fill("[[1, 2, 3], [4, 5, 6]]");
    const refused = await send(page);
    assert.equal(refused.status, 400);
    await page.getByRole("alert").getByText("batch").waitFor();
});

tryIt("FP16, which has no JSON form, is sent, shown and copied", "halves", async (page) => {
    await page.getByLabel("INPUT0 [0, 0]").fill("0.1");
    await send(page);
    await output(page, "OUTPUT0").getByText("0.1", { exact: true }).waitFor();
    const [[, shape, values]] = await printed(page, "Python (tritonclient)");
    assert.deepEqual([shape, Math.round(values[0] * 1e6)], [[1, 4], 99976]);
});

tryIt("rows of CSV go to features by name", "houses", async (page) => {
    await page.getByLabel("Rows as CSV").fill("area,kind,rooms\n2,house,3\n1,flat,4\n");
    const { answer } = await send(page);
    assert.deepEqual(plain(answer.tensors[0]), [213, 104]);
    await assertCopies(page, answer);
    await page.getByLabel("Rows as CSV").fill("area,kind,rooms\n2,<b>castle</b>,3\n");
    await sendButton(page).click();
    await page.getByRole("alert").getByText("'<b>castle</b>' is none of 'flat', 'house'").first().waitFor();
});

tryIt("requests of a sequence follow each other", "counter", async (page) => {
    for (const total of [5, 10, 15]) {
        await page.getByLabel("VALUE", { exact: true }).fill("5");
        const { answer } = await send(page);
        assert.equal(answer.tensors[0].values[0], total);
    }
    await page.getByLabel("End").check();
    await send(page);
    assert.equal(await page.getByLabel("Start").isChecked(), true);
    const { answer } = await send(page);
    assert.equal(answer.tensors[0].values[0], 5);
});

tryIt("a tensor of 100 MB is a summary", "zeros", async (page) => {
    await page.getByLabel("COUNT", { exact: true }).fill("25000000");
    await sendButton(page).click();
    const shown = output(page, "VALUES");
    await shown.getByText("25,000,000", { exact: true }).waitFor();
    await shown.getByText("24,999,999", { exact: true }).waitFor();
    assert.ok((await page.evaluate(() => document.querySelectorAll("*").length)) < 1000);
    await shown.getByRole("button", { name: "Table" }).click();
    assert.ok((await page.evaluate(() => document.querySelectorAll("*").length)) < 1500);
});

tryIt("large inputs are sent as bytes", "scenes", async (page) => {
    await page.getByRole("button", { name: "Generated" }).click();
    await page.getByLabel("Rows (batch)").fill("8");
    const { answer, request } = await send(page);
    assert.equal(request.headers()["content-type"], "application/octet-stream");
    assert.deepEqual(answer.tensors[0].shape, [8, 5]);
    await assertCopies(page, answer);
});

tryIt("a small load is measured and stopped", "sums", async (page) => {
    await page.getByText("Small load").click();
    await page.getByLabel("Requests at a time").selectOption("4");
    await page.getByRole("button", { name: "Measure for 10 s" }).click();
    await page.getByText("requests/s").waitFor();
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await page.getByRole("button", { name: "Measure for 10 s" }).waitFor();
    assert.match(await page.getByText(/^\d+ in \d+\.\d s$/).textContent(), /^[1-9]/);
});

tryIt("the keyboard is enough", "sums", async (page) => {
    await page.getByLabel("INPUT0 [0, 0]").focus();
    await page.keyboard.type("7");
    await page.keyboard.press("Control+Enter");
    await page.getByText("Answered in").waitFor();
    await sendButton(page).focus();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Shift+Tab");
    const { answer } = await send(page, () => page.keyboard.press("Enter"));
    assert.equal(answer.tensors.length, 2);
    const copy = page.locator("summary", { hasText: "Copy as code" });
    for (let step = 0; step < 20 && !(await copy.evaluate((element) => element === document.activeElement)); step++) await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByLabel("Code", { exact: true }).waitFor();
});

tryIt("an unknown model is said to be unknown", "<b>none</b>", async (page) => {
    await page.getByText("There is no such model").waitFor();
});

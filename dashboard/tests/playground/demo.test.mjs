// The first minute with `make demo-keep`: latencies, an own picture through the OCR pipeline, and its code.
// tests/integration/test_demo.py draws the PICTURE with the LINES and starts the server.

import assert from "node:assert/strict";
import { copyFile } from "node:fs/promises";
import path from "node:path";
import { folder, printed } from "./copied_code.mjs";
import { output, send, sendButton, tryIt } from "./server_page.mjs";

const lines = JSON.parse(process.env.LINES ?? "[]");
const LANGUAGES = ["curl", "Python (tritonclient)", "Python (requests)", "JavaScript"];

function texts(answer) {
    const found = answer.tensors.find(({ name }) => name === "TEXT");
    return found.values.map((each) => new TextDecoder().decode(each));
}

tryIt("each model that has served shows its latency", "", async (page) => {
    for (const name of ["file_features", "file_type", "sentence_embedding", "sentence_tokens", "text_line"]) {
        const card = page.getByRole("link", { name: new RegExp(`^${name}\\b`) });
        for (const percentile of ["p50", "p95", "p99"]) await card.getByText(new RegExp(`^${percentile}\\s*[\\d.]+\\s*(µs|ms|s)`)).first().waitFor();
    }
});

tryIt("two clicks and an own picture give its text, and its code the same", "", async (page, t) => {
    await page.getByRole("link", { name: /^ocr\b(?!_)/ }).click();
    await page.getByRole("link", { name: "Try it" }).first().click();
    const { answer } = await send(page, () => page.getByLabel("Picture for IMAGE").setInputFiles(process.env.PICTURE));
    assert.deepEqual(texts(answer).map((text) => text.trim()), lines);
    for (const line of lines) await output(page, "BOXES").getByText(line).first().waitFor();
    await page.getByText(`${lines.length} of ${lines.length} boxes`).waitFor();
    assert.equal(await page.getByText("sequence_id").count(), 0);
    assert.equal(await output(page, "BOXES").getByLabel("Numbers").count(), 0); // Corners need no format.
    await copyFile(process.env.PICTURE, path.join(folder, path.basename(process.env.PICTURE)));
    for (const language of LANGUAGES) {
        const found = (await printed(page, language)).find(([name]) => name === "TEXT");
        assert.deepEqual(found?.[2], texts(answer), language);
        t.diagnostic(`${language} prints the same`);
    }
});

tryIt("the picture that is filled in has a word to read", "ocr", async (page) => {
    const { answer } = await send(page, () => sendButton(page).click());
    assert.deepEqual(texts(answer), ["naiad"]);
});

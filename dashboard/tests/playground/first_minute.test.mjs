// From the first page of `naiad serve photo.onnx` to a tried picture: three clicks, no typing.

import assert from "node:assert/strict";
import { axe } from "../browser.mjs";
import { output, send, sendButton, tryIt } from "./server_page.mjs";

tryIt("three clicks try a picture", "", async (page) => {
    await page.getByRole("link", { name: /photo/ }).first().click();
    await page.getByRole("link", { name: "Try it" }).first().click();
    const { answer } = await send(page, () => sendButton(page).click());
    assert.deepEqual(answer.tensors[0].shape, [1, 5]);
    await output(page, "scores").getByText(/^class \d+$/).first().waitFor();
    await page.locator(".pg-times li", { hasText: "executing the model" }).waitFor();
});

tryIt("classes get names from a file, which the browser remembers", "photo", async (page) => {
    await send(page);
    const names = Buffer.from(["zero", "one", "two", "<b>three</b>", "four"].join("\n"));
    await page.getByLabel("Labels file for scores").setInputFiles({ name: "names.txt", mimeType: "text/plain", buffer: names });
    await output(page, "scores").getByText("<b>three</b>", { exact: true }).waitFor();
    assert.deepEqual(await axe(page), []);
    await page.reload();
    await send(page);
    await output(page, "scores").getByText("<b>three</b>", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Remove the labels" }).click();
    await output(page, "scores").getByText("class 3", { exact: true }).waitFor();
});

tryIt("what was entered is there again after another tab", "photo", async (page) => {
    await page.getByText("Options").click();
    await page.getByLabel("Answer of scores").selectOption("1");
    await page.getByRole("link", { name: "Configuration" }).click();
    await page.getByRole("link", { name: "Try it" }).click();
    await page.getByText("Options").click();
    assert.equal(await page.getByLabel("Answer of scores").inputValue(), "1");
});

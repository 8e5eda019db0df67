// From the first page of `naiad serve photo.onnx` to a tried picture: three clicks, no typing.

import assert from "node:assert/strict";
import { output, send, sendButton, tryIt } from "./server_page.mjs";

tryIt("three clicks try a picture", "", async (page) => {
    await page.getByRole("link", { name: /photo/ }).first().click();
    await page.getByRole("link", { name: "Try it" }).first().click();
    const { answer } = await send(page, () => sendButton(page).click());
    assert.deepEqual(answer.tensors[0].shape, [1, 5]);
    await output(page, "scores").getByText(/^class \d+$/).first().waitFor();
    await page.locator(".pg-times li", { hasText: "executing the model" }).waitFor();
});

// A server that keeps inference for clients with a key.

import assert from "node:assert/strict";
import { sendButton, tryIt } from "./server_page.mjs";

tryIt("without the right to infer there is no button, and the reason is shown", "photo", async (page) => {
    const place = page.locator(".not-allowed");
    await place.waitFor();
    assert.equal(await sendButton(page).count(), 0);
    assert.ok((await place.textContent()).length > 40);
});

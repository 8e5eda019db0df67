// The playground in light, dark and on a phone: no serious finding of axe-core, and nothing wider than the screen.

import assert from "node:assert/strict";
import { axe, overflow, PHONE } from "../browser.mjs";
import { send, tryIt } from "./server_page.mjs";

for (const [name, options] of [["light", {}], ["dark", { colorScheme: "dark" }], ["phone", { viewport: PHONE }]]) {
    for (const model of ["scenes", "detector", "shout", "houses", "counter"]) {
        tryIt(`${model} has no finding of accessibility: ${name}`, model, async (page) => {
            await send(page);
            await page.getByText("Copy as code").click();
            await page.getByText("Small load").click();
            assert.deepEqual(await axe(page), []);
            assert.equal(await overflow(page), 0);
        }, options);
    }
}

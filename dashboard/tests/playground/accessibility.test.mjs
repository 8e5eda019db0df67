// The playground in light, dark and on a phone: no serious finding of axe-core, and nothing wider than the screen.
// Colours and widths are of the same parts in all models: without EVERY_MODEL, two stand for them in the dark and on a phone.

import assert from "node:assert/strict";
import { axe, overflow, PHONE } from "../browser.mjs";
import { send, tryIt } from "./server_page.mjs";

const MODELS = ["scenes", "detector", "shout", "houses", "counter"];
const [IN_DARK, ON_PHONE] = process.env.EVERY_MODEL ? [MODELS, MODELS] : [["scenes", "shout"], ["detector", "counter"]];

for (const [name, options, models] of [
    ["light", {}, MODELS],
    ["dark", { colorScheme: "dark" }, IN_DARK],
    ["phone", { viewport: PHONE }, ON_PHONE],
]) {
    for (const model of models) {
        tryIt(`${model} has no finding of accessibility: ${name}`, model, async (page) => {
            await send(page);
            await page.getByText("Copy as code").click();
            await page.getByText("Small load").click();
            assert.deepEqual(await axe(page), []);
            assert.equal(await overflow(page), 0);
        }, options);
    }
}

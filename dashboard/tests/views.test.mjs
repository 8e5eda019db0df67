// Every view with a real server under load: light, dark, phone, keyboard only, axe-core. Needs NAIAD_URL, the address of
// a server with the models of tests/support/dashboard_scene.py. With SCREENSHOTS, a folder, it writes a picture of each.

import assert from "node:assert/strict";
import path from "node:path";
import test from "node:test";
import { axe, DESK, focused, launch, open, overflow, PHONE } from "./browser.mjs";

const url = process.env.NAIAD_URL ?? "";
const pictures = process.env.SCREENSHOTS ?? "";
const KINDS = {
    light: { colorScheme: "light" },
    dark: { colorScheme: "dark" },
    phone: { colorScheme: "light", viewport: PHONE, hasTouch: true, isMobile: true },
};
/** Name, address, and a text that is there once the view has its data. */
const VIEWS = [
    ["overview", "#/", "page_reader"],
    ["model", "#/models/detect", "Why batches were sent"],
    ["configuration", "#/models/detect/config", "max_queue_delay_microseconds"],
    ["versions", "#/models/scale/versions", "canary"],
    ["try", "#/models/plain/try", "INPUT0"],
    ["pipelines", "#/pipeline", "All ensembles"],
    ["pipeline", "#/pipeline/page_reader", "Tensors flow from left to right"],
    ["calls", "#/pipeline/caller", "Models that it has called"],
    ["traffic", "#/traffic", "<b>is</b> negative"],
    ["rollout", "#/rollout", "Roll back"],
    ["control", "#/control", "Reload"],
];
const browser = await launch();
test.after(() => browser.close());

for (const [kind, options] of Object.entries(KINDS)) {
    test(`every view: ${kind}`, async (t) => {
        const page = await open(browser, url, { viewport: DESK, ...options });
        t.after(() => page.context().close());
        for (const [name, hash, text] of VIEWS) {
            await page.goto(`${url}${hash}`);
            await page.getByText(text).first().waitFor({ state: "attached" });
            if (name === "model") await page.locator(".waterfall li").nth(4).waitFor();
            if (pictures) await page.waitForTimeout(8000); // The charts fill.
            assert.deepEqual(await axe(page), [], `${name}, ${kind}`);
            assert.equal(await overflow(page), 0, `${name}, ${kind}`);
            if (pictures) await page.screenshot({ path: path.join(pictures, `${name}-${kind}.png`) });
        }
        assert.deepEqual(page.problems, []);
    });
}

test("calls of a Python model have a rate and a time", async (t) => {
    const page = await open(browser, `${url}#/pipeline/caller`);
    t.after(() => page.context().close());
    await page.getByText(/caller to scale: .*\/s, mean/).waitFor({ state: "attached", timeout: 120_000 });
});

test("keyboard only: from the skip link to a model, its tabs, and a dialog", async (t) => {
    const page = await open(browser, url);
    t.after(() => page.context().close());
    await page.getByRole("link", { name: "page_reader" }).waitFor();
    const press = async (key, wanted) => {
        for (let i = 0; i < 60; i++) {
            await page.keyboard.press(key);
            const now = await focused(page);
            const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
            if (now) assert.notEqual(outline, "none", `the focus of ${now} is not visible`);
            if (now.includes(wanted)) return;
        }
        assert.fail(`${key} does not reach ${wanted}`);
    };
    await press("Tab", "Skip to the content");
    await page.keyboard.press("Enter");
    assert.match(await focused(page), /^main/);
    await press("Tab", "Filter");
    await page.keyboard.type("detec");
    await press("Tab", "detect");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "detect", level: 1 }).waitFor();
    await press("Tab", "Configuration");
    await page.keyboard.press("Enter");
    await page.getByText("max_queue_delay_microseconds").waitFor();
    await press("Shift+Tab", "Control");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Control" }).waitFor();
    await press("Tab", "Unload detect");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => !document.querySelector("dialog[open]"));
    assert.match(await focused(page), /Unload detect/);
});

test("with less motion nothing moves", async (t) => {
    const page = await open(browser, url, { reducedMotion: "reduce" });
    t.after(() => page.context().close());
    await page.getByText("Live", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
});

test("load, unload and a step of a rollout change the server", async (t) => {
    const page = await open(browser, `${url}#/control`);
    t.after(() => page.context().close());
    await page.getByRole("button", { name: "Unload plain" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Unload" }).click();
    await page.getByRole("button", { name: "Load plain", exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Load" }).click();
    await page.getByRole("button", { name: "Unload plain" }).waitFor();
    await page.goto(`${url}#/rollout`);
    await page.getByLabel("Weight in %").fill("30");
    await page.getByRole("button", { name: "Set weight" }).click();
    await page.getByRole("button", { name: "Set 30 %" }).click();
    await page.getByRole("cell", { name: /^30/ }).waitFor();
    const status = await (await fetch(new URL("v2/models/scale/rollout", url))).json();
    assert.equal(status.rollout.weight, 30);
});

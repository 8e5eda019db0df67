// The page with a scripted server: hostile texts, many models, a server that dies, no rights, a prefix.

import assert from "node:assert/strict";
import test from "node:test";
import { axe, launch, open, overflow, PHONE } from "./browser.mjs";
import { row, ScriptedServer } from "./scripted_server.mjs";

const browser = await launch();
test.after(() => browser.close());

async function scene(t, options, hash = "", more = {}) {
    const server = await new ScriptedServer(options).start();
    const page = await open(browser, `${server.url}${hash}`, more);
    t.after(async () => {
        await page.context().close();
        await server.stop();
        assert.deepEqual(page.problems, []);
    });
    return { server, page };
}

const HOSTILE = ['<img src=x onerror="window.hacked=1">', "\u202eevil\u0007\u001b[31m", "a/b?c#d%e", "</script><script>window.hacked=1</script>", "x".repeat(300), "${alert(1)}", "javascript:window.hacked=1"];

test("texts of others are only ever text", async (t) => {
    const models = HOSTILE.map((name) => row(name, { backend: name, versions: [{ version: "1", state: "UNAVAILABLE", reason: name }, { version: "2", state: "READY", reason: name }] }));
    models.push(row("pipeline", { backend: "ensemble", steps: HOSTILE }));
    const { server, page } = await scene(t, { models });
    server.script = (scripted) => HOSTILE.forEach((name) => scripted.serve(`${name}/2`, 5));
    await page.waitForSelector(".card");
    server.send("failures", { failures: HOSTILE.map((name) => ({ time_ms: Date.now(), id: name, model: name, version: name, code: name, message: name })), left_out: 0 });
    for (const name of HOSTILE) {
        await page.goto(`${server.url}#/models/${encodeURIComponent(name)}`);
        await page.waitForFunction((wanted) => document.querySelector("h1")?.textContent.startsWith(wanted), name.startsWith("\u202e") ? "\\u202eevil\\u0007\\u001b[31m" : name);
        assert.equal(await overflow(page), 0, name);
    }
    for (const view of ["pipeline", "traffic", "control", "rollout"]) {
        await page.goto(`${server.url}#/${view}`);
        await page.waitForSelector("h1");
        if (view === "traffic") server.send("log", { lines: HOSTILE.map((text) => ({ time_ms: 1, level: "ERROR", text })), left_out: 7 });
        await page.waitForTimeout(300);
        assert.equal(await overflow(page), 0, view);
    }
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.evaluate(() => document.querySelectorAll("#page img, #page script, a[href^='javascript']").length), 0);
});

test("a thousand models: few cards exist, the filter finds one", async (t) => {
    const models = Array.from({ length: 1000 }, (_, i) => row(`model_${i}`));
    const { server, page } = await scene(t, { models });
    server.script = (scripted) => models.forEach((each) => scripted.serve(`${each.name}/1`, 2));
    await page.waitForSelector(".card");
    assert.ok((await page.locator(".card").count()) < 60);
    assert.match(await page.locator(".shown-count").innerText(), /1000 models/);
    await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
    await page.getByRole("link", { name: "model_999" }).waitFor();
    const longest_ms = await page.evaluate(async () => {
        let longest = 0;
        const observer = new PerformanceObserver((list) => list.getEntries().forEach((entry) => (longest = Math.max(longest, entry.duration))));
        observer.observe({ type: "longtask" });
        await new Promise((resolve) => setTimeout(resolve, 1000));
        return longest;
    });
    t.diagnostic(`longest task with 1000 models that all serve, five samples a second: ${longest_ms} ms`);
    await page.getByPlaceholder("Filter models").fill("model_77");
    await page.waitForFunction(() => document.querySelectorAll(".card").length === 11);
    await page.getByRole("link", { name: "model_777" }).click();
    await page.getByRole("heading", { name: "model_777", level: 1 }).waitFor();
});

test("a server that dies: the page says so and comes back by itself", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] });
    server.script = (scripted) => scripted.serve("digits/1", 100);
    await page.waitForFunction(() => Number(document.querySelector(".card .value")?.textContent) > 300);
    await server.stop();
    await page.getByRole("alert").getByText("The server is away.").waitFor();
    assert.equal(await page.locator(".card").count(), 1);
    server.totals.clear();
    server.started_ms += 60_000;
    server.script = (scripted) => scripted.serve("digits/1", 1);
    await server.start(server.port);
    await page.getByText("Live", { exact: true }).waitFor();
    await page.waitForFunction(() => !document.querySelector(".away"));
    await page.waitForFunction(() => {
        const rate = Number(document.querySelector(".card .value")?.textContent);
        return rate > 0 && rate < 20;
    });
});

/** The queries of the live streams that the page has opened. */
function streamQueries(server) {
    return server.requests.filter((each) => each.path === "v2/live").map((each) => each.query);
}

async function until(isMet) {
    for (let i = 0; !isMet(); i++) {
        assert.ok(i < 600, "it does not happen");
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
}

test("a page that nobody sees asks less often, and at once again when it is seen", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] });
    await page.clock.install();
    await page.reload();
    await page.waitForSelector(".card");
    const before = streamQueries(server).length;
    const setHidden = (hidden) => page.evaluate((value) => {
        Object.defineProperty(document, "hidden", { get: () => value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    await setHidden(true);
    await page.clock.runFor(20_000);
    await setHidden(false);
    await page.clock.runFor(20_000);
    assert.deepEqual(streamQueries(server).slice(before).filter(Boolean), []);
    await setHidden(true);
    await page.clock.runFor(31_000);
    await until(() => streamQueries(server).at(-1) === "?interval_ms=5000");
    await setHidden(false);
    await until(() => streamQueries(server).at(-1) === "");
    await until(() => server.streams.size === 1);
});

test("many pages of one browser leave a connection to the one that is seen", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] });
    const hidden = [];
    for (let i = 0; i < 8; i++) {
        const other = await page.context().newPage();
        await other.addInitScript(() => Object.defineProperty(document, "hidden", { get: () => !window.isSeen, configurable: true }));
        await other.goto(server.url);
        await other.waitForSelector(".card");
        hidden.push(other);
    }
    await until(() => server.streams.size <= 4);
    await page.reload();
    await page.waitForSelector(".card");
    const before = streamQueries(server).length;
    await hidden[0].evaluate(() => {
        window.isSeen = true;
        document.dispatchEvent(new Event("visibilitychange"));
    });
    await until(() => streamQueries(server).length > before);
});

test("after a sleep of the computer the page connects anew", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] });
    await page.clock.install();
    await page.reload();
    await page.waitForSelector(".card");
    server.isSilent = true;
    const before = streamQueries(server).length;
    await page.clock.fastForward(3_600_000);
    await until(() => streamQueries(server).length > before);
    server.isSilent = false;
    await page.getByText("Live", { exact: true }).waitFor();
});

test("the reason of a server that shuts down is shown", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] });
    await page.waitForSelector(".card");
    server.send("gone", { reason: "The server shuts down for an update." });
    for (const stream of server.streams) stream.end();
    await page.waitForTimeout(100);
    await server.stop();
    await page.getByText("The server shuts down for an update.").waitFor();
    await server.start(server.port);
    await page.getByText("Live", { exact: true }).waitFor();
});

test("counters that begin again give no negative rate", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")] }, "#/models/digits");
    server.script = (scripted) => scripted.serve("digits/1", 100);
    await page.waitForFunction(() => Number(document.querySelector(".figure .value")?.textContent) > 300);
    server.totals.clear();
    const seen = new Set();
    for (let i = 0; i < 15; i++) {
        seen.add(await page.locator(".figures").innerText());
        await page.waitForTimeout(100);
    }
    assert.ok([...seen].every((text) => !/[-−]\d/.test(text)), [...seen].join("\n"));
});

test("what a client may not do is absent, with its reason", async (t) => {
    const no = (reason) => ({ allowed: false, reason });
    const allowed = { "model-repository": no("The key 'reader' has no access to model-repository."), rollout: no("No rollouts for you."), logging: no("No logs for you."), statistics: no("No statistics."), inference: no("No requests for you.") };
    const { server, page } = await scene(t, { models: [row("digits")], allowed });
    await page.waitForSelector(".card");
    for (const [hash, reason] of [["#/control", "The key 'reader' has no access"], ["#/rollout", "No rollouts for you."], ["#/traffic", "No logs for you."], ["#/models/digits/try", "No requests for you."]]) {
        await page.goto(`${server.url}${hash}`);
        await page.getByText(reason).waitFor();
        assert.equal(await page.getByRole("button", { name: /^(Load|Reload|Unload|Start|Promote|Roll back|Send)/ }).count(), 0, hash);
        assert.deepEqual(await axe(page), [], hash);
    }
    assert.deepEqual(server.requests.filter((each) => each.query.includes("log") || each.path.includes("explain")), []);
});

test("without explicit control there are no loads, and the flag is named", async (t) => {
    const { page } = await scene(t, { models: [row("digits")], mode: "none" }, "#/control");
    await page.getByText("--model-control-mode=explicit").waitFor();
    assert.equal(await page.getByRole("button", { name: /load/i }).count(), 0);
});

test("a page that was opened in the background shows the model all the same", async (t) => {
    const answers = { "v2/models/digits": { inputs: [], outputs: [] }, "v2/models/digits/config": { name: "digits", max_batch_size: 8 } };
    const { page } = await scene(t, { models: [row("digits")], answers });
    await page.addInitScript(() => Object.defineProperty(document, "hidden", { get: () => true }));
    await page.reload();
    await page.getByRole("link", { name: "digits" }).click();
    await page.getByRole("link", { name: "Configuration" }).click();
    await page.getByText("max_batch_size").waitFor();
});

test("names from right to left, colors of the user, and a page at four times its size", async (t) => {
    const name = "نموذج 7";
    const narrow = { forcedColors: "active", viewport: { width: 320, height: 430 }, deviceScaleFactor: 4 };
    const { server, page } = await scene(t, { models: [row(name), row("x".repeat(300))] }, "", narrow);
    server.script = (scripted) => scripted.serve(`${name}/1`, 5);
    await page.waitForSelector(".card");
    assert.equal(await page.evaluate(() => matchMedia("(forced-colors: active)").matches), true);
    for (const hash of ["#/", `#/models/${encodeURIComponent(name)}`, "#/pipeline", "#/traffic", "#/rollout", "#/control"]) {
        await page.goto(`${server.url}${hash}`);
        await page.waitForSelector("h1");
        assert.equal(await overflow(page), 0, hash);
    }
    await page.goto(`${server.url}#/models/${encodeURIComponent(name)}`);
    await page.locator("h1 bdi", { hasText: name }).waitFor();
    const swatches = page.locator("main .bar-track i");
    await swatches.first().waitFor({ state: "attached" });
    const colors = await swatches.evaluateAll((all) => all.map((each) => getComputedStyle(each).backgroundColor));
    assert.ok(colors.every((color) => !["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"].includes(color)), colors.join("; "));
});

test("names stand as text that changes nothing around them, also in titles and choices", async (t) => {
    const { page } = await scene(t, { models: [row("\u202egpj")] }, `#/rollout/${encodeURIComponent("\u202egpj")}`);
    await page.getByRole("heading", { name: "\\u202egpj" }).waitFor();
    assert.ok(!(await page.locator("#page").innerText()).includes("\u202e"));
});

test("behind a path prefix every request stays behind it", async (t) => {
    const answers = { "v2/models/digits": { inputs: [{ name: "IN", datatype: "FP32", shape: [-1, 4] }], outputs: [] }, "v2/models/digits/config": { name: "digits", max_batch_size: 8 } };
    const { server, page } = await scene(t, { models: [row("digits")], prefix: "/team/naiad/", answers });
    await page.getByRole("link", { name: "digits" }).click();
    await page.getByRole("link", { name: "Configuration" }).click();
    await page.getByText("max_batch_size").waitFor();
    assert.ok(server.requests.some((each) => each.path === "v2/models/digits/config"));
});

test("a server with keys asks for one, and opens with it", async (t) => {
    const { server, page } = await scene(t, { models: [row("digits")], key: "naiad_secret" });
    await page.getByLabel("API key").fill("wrong");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("this server needs a key").waitFor();
    assert.deepEqual(await axe(page), []);
    await page.getByLabel("API key").fill("naiad_secret");
    await page.getByRole("button", { name: "Open" }).click();
    await page.waitForSelector(".card");
    await page.reload();
    await page.waitForSelector(".card");
    assert.ok(server.requests.every((each) => !each.query.includes("secret")));
});

test("a key for one category is asked for where its controls would be", async (t) => {
    const no = { allowed: false, reason: "missing API key: send it as 'Authorization: Bearer <key>'", asks_for_key: true };
    const { server, page } = await scene(t, { models: [row("digits")], rights: (key) => (key === "Bearer naiad_admin" ? {} : { "model-repository": no, rollout: no }) }, "#/control");
    await page.getByText("missing API key").waitFor();
    assert.equal(await page.getByRole("button", { name: /load/i }).count(), 0);
    assert.deepEqual(await axe(page), []);
    await page.getByLabel("API key").fill("wrong");
    await page.getByRole("button", { name: "Use the key" }).click();
    await page.getByRole("button", { name: "Forget the key" }).waitFor();
    await page.getByLabel("API key").fill("naiad_admin");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Unload digits" }).waitFor();
    await page.goto(`${server.url}#/rollout`);
    await page.getByText("No rollout is under way.").waitFor();
    assert.equal(await page.getByLabel("API key").count(), 0);
});

test("models without metadata, versions or figures have their places", async (t) => {
    const { server, page } = await scene(t, { models: [row("bare", { backend: "", versions: [] }), row("loading", { versions: [{ version: "1", state: "LOADING", reason: "" }] })] });
    await page.getByText("Serves nothing until it is loaded.").waitFor();
    for (const tab of ["", "/config", "/versions"]) {
        await page.goto(`${server.url}#/models/bare${tab}`);
        await page.getByRole("heading", { name: "bare", level: 1 }).waitFor();
        await page.waitForTimeout(200);
    }
    await page.goto(`${server.url}#/models/unknown`);
    await page.getByText("There is no such model.").waitFor();
});

test("an empty server says what to do next", async (t) => {
    const { page } = await scene(t, { models: [] }, "", { viewport: PHONE });
    await page.getByText("naiad serve model.onnx").waitFor();
    assert.equal(await overflow(page), 0);
    assert.deepEqual(await axe(page), []);
});

test("unloads and rollbacks ask first", async (t) => {
    const done = [];
    const side = (version, percent) => ({ version, percent, requests: 10, errors: 0, error_rate: 0, p50_ms: 1, p99_ms: null });
    const status = { rollout: { stable: 1, canary: 2, weight: 10, sticky: "", shadow: 0 }, note: "declared", age_s: 5, record: "", refused: {}, stable: side(1, 90), canary: side(2, 10) };
    const answers = {
        "POST v2/repository/models/digits/unload": () => (done.push("unload"), {}),
        "GET v2/models/digits/rollout": status,
        "POST v2/models/digits/rollout": (body) => (done.push(body), status),
    };
    const { server, page } = await scene(t, { models: [row("digits", { rollout: { stage: "canary", split: { 1: 90, 2: 10 } } })], answers }, "#/control");
    await page.getByRole("button", { name: "Unload digits" }).click();
    await page.getByRole("dialog").waitFor();
    assert.deepEqual(await axe(page), []);
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => !document.querySelector("dialog[open]"));
    assert.deepEqual(done, []);
    await page.getByRole("button", { name: "Unload digits" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Unload" }).click();
    await page.getByText("digits is unloaded.").waitFor();
    await page.goto(`${server.url}#/rollout`);
    await page.getByRole("button", { name: "Roll back" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
    await page.getByText("digits is back at version 1.").waitFor();
    await page.getByLabel("Weight in %").fill("25");
    await page.getByRole("button", { name: "Set weight" }).click();
    await page.getByRole("button", { name: "Set 25 %" }).click();
    await page.getByText("Version 2 of digits gets 25 %.").waitFor();
    assert.deepEqual(done, ["unload", '{"action":"rollback"}', '{"weight":25}']);
});

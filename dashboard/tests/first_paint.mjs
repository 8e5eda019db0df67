// How soon a page is there: node tests/first_paint.mjs URL COUNT. Prints a JSON list of times in ms since the address was
// entered, each in a new context of Chromium, without a cache: the first paint with content, the first card of a model,
// the page at rest, which answers at once what is clicked, and the CPU time of the page until then, which other work of the
// machine does not change. `python -m bench.live_page --paint COUNT` runs it.

import { DESK, launch } from "./browser.mjs";

const [url, count] = process.argv.slice(2);
const browser = await launch();
const rows = [];
for (let number = 0; number <= Number(count); number++) {
    const context = await browser.newContext({ viewport: DESK });
    const page = await context.newPage();
    await page.addInitScript(() => {
        window.times = {};
        const note = (name) => (window.times[name] ??= performance.now());
        new PerformanceObserver((list) => list.getEntriesByName("first-contentful-paint").forEach((each) => (window.times.paint = each.startTime))).observe({ type: "paint", buffered: true });
        new MutationObserver((_, observer) => {
            if (!document.querySelector(".card")) return;
            observer.disconnect();
            note("cards");
            requestIdleCallback(() => note("interactive"));
        }).observe(document, { childList: true, subtree: true });
    });
    const debug = await context.newCDPSession(page);
    await debug.send("Performance.enable", { timeDomain: "threadTicks" });
    await page.goto(url);
    await page.waitForFunction(() => window.times.interactive && window.times.paint);
    // The first time is that of the browser, which starts its processes.
    const { metrics } = await debug.send("Performance.getMetrics");
    const cpu = metrics.find((each) => each.name === "TaskDuration").value * 1000;
    if (number > 0) rows.push({ ...(await page.evaluate(() => window.times)), cpu });
    await context.close();
}
await browser.close();
console.log(JSON.stringify(rows));

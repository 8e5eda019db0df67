// Chromium of the system, and what tests ask of a page.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { existsSync } from "node:fs";
import path from "node:path";
import { chromium } from "playwright-core";

const PLACES = ["chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"].flatMap((name) => (process.env.PATH ?? "").split(":").map((folder) => path.join(folder, name)));
const axeSource = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** A microphone that beeps, and whose use is asked for as ever: `permissions: ["microphone"]` grants it. */
const MICROPHONE = ["--use-fake-device-for-media-stream"];
/** Without windows nobody is asked: every page has the microphone. */
const NO_QUESTION = ["--use-fake-ui-for-media-stream"];
export const DESK = { width: 1280, height: 860 };
export const PHONE = { width: 390, height: 844 };

export async function launch() {
    const executablePath = process.env.CHROMIUM ?? PLACES.find((each) => existsSync(each));
    if (!executablePath) throw new Error("Chromium is not installed");
    const microphone = executablePath.endsWith("headless-shell") ? [...MICROPHONE, ...NO_QUESTION] : MICROPHONE;
    return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", ...microphone] });
}

/** A page that collects what must not happen: errors of scripts, and what the policy forbids. */
export async function open(browser, url, options = {}) {
    const context = await browser.newContext({ viewport: DESK, colorScheme: "light", locale: "en-GB", timezoneId: "UTC", ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(120_000); // however busy the machine is
    page.problems = [];
    page.on("pageerror", (error) => page.problems.push(String(error)));
    page.on("console", (message) => {
        if (/Content Security Policy|Refused to/.test(message.text())) page.problems.push(message.text());
    });
    await page.goto(url);
    return page;
}

/** Serious findings of axe-core, as text. The policy of the page keeps scripts out, so it runs by the debugger. */
export async function axe(page) {
    if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
    const found = await page.evaluate(async () => {
        const result = await window.axe.run(document, { resultTypes: ["violations"] });
        return result.violations.map((each) => ({ id: each.id, impact: each.impact, nodes: each.nodes.slice(0, 4).map((node) => `${node.html.slice(0, 160)}: ${node.failureSummary}`) }));
    });
    return found.filter((each) => each.impact === "serious" || each.impact === "critical");
}

/** Whether the page is wider than the screen. */
export function overflow(page) {
    return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

/** What has the focus: its role and its text. */
export function focused(page) {
    return page.evaluate(() => {
        const element = document.activeElement;
        return element && element !== document.body ? `${element.tagName.toLowerCase()} ${(element.getAttribute("aria-label") ?? element.getAttribute("placeholder") ?? element.textContent ?? "").trim().slice(0, 60)}` : "";
    });
}

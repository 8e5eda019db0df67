// Pages of a real server, whose address is in NAIAD_URL, and what the page has sent and received.

import { test } from "node:test";
import { launch, open } from "../browser.mjs";
import { load } from "../modules.mjs";

export const url = process.env.NAIAD_URL;
const { decodeAnswer } = await load("playground/wire/infer_answer");
let browser;

test.after(async () => browser?.close());

/** A test with a page of a model's playground; without a server it is skipped. */
export function tryIt(name, model, work, options = {}) {
    test(name, { skip: url ? false : "NAIAD_URL is not set", timeout: 180_000 }, async (t) => {
        browser ??= await launch();
        const page = await open(browser, `${url}${model ? `#/models/${encodeURIComponent(model)}/try` : ""}`, options);
        page.on("dialog", (dialog) => page.problems.push(`dialog: ${dialog.message()}`));
        try {
            await work(page, t);
            if ((await page.title()) === "1") page.problems.push("markup of the server was executed");
            if (page.problems.length) throw new Error(page.problems.join("\n"));
        } catch (error) {
            if (process.env.WORK) await page.screenshot({ path: `${process.env.WORK}/failed.png`, fullPage: true });
            throw error;
        } finally {
            await page.context().close();
        }
    });
}

export function sendButton(page) {
    return page.getByRole("button", { name: "Send", exact: true });
}

/** Send the form, and return the response that the page received, as tensors. */
export async function send(page, work = () => sendButton(page).click()) {
    const received = page.waitForResponse((response) => response.url().endsWith("/infer"));
    await work();
    const response = await received;
    const isStream = response.headers()["content-type"]?.startsWith("text/event-stream");
    // The text of the request before may still stand there, and may be the same; its id may not.
    const id = /"id":\s*"([^"]+)"/.exec(response.request().postDataBuffer()?.toString("latin1") ?? "")?.[1];
    if (id && response.ok() && !isStream) await page.locator(".pg-id code", { hasText: id }).first().waitFor();
    const body = isStream ? undefined : await response.body();
    const length = response.headers()["inference-header-content-length"];
    await page.getByRole("status").filter({ hasText: /Answered|Refused|responses/ }).waitFor();
    return { status: response.status(), answer: response.ok() && body ? decodeAnswer(new Uint8Array(body), length === undefined ? undefined : Number(length)) : undefined, request: response.request() };
}

export function output(page, name) {
    return page.getByRole("region", { name: `Output ${name}`, exact: true });
}

// Runs code that the page shows, and returns the outputs that it prints: name, shape, values.

import { execFile, spawn } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import path from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const run = promisify(execFile);
/** Where the code runs. */
export const folder = await mkdtemp(path.join(process.env.WORK ?? "/tmp", "copied-"));
// A process with the packages of the code, which takes files and forks for each: to import them takes a second.
const PYTHON = `
import ast, contextlib, io, json, os, sys, traceback
import numpy, requests, tritonclient.http

def run(file):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(open(file).read(), "copied", "exec"), {"__name__": "__main__"})
    for line in shown.getvalue().splitlines():
        if line.startswith("{"):
            for output in ast.literal_eval(line)["outputs"]:
                print(json.dumps([output["name"], output["shape"], output["data"]]))
            continue
        name, _, rest = line.partition(" [")
        shape, _, values = rest.partition("] ")
        plain = ast.literal_eval(values)
        print(json.dumps([name, ast.literal_eval("[" + shape + "]"), plain], default=lambda each: each.decode()))

for line in sys.stdin:
    if not os.fork():
        status = 0
        try:
            run(line.strip())
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    print("ended", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
`;
let python;

export async function choose(page, language) {
    const panel = page.locator("details", { hasText: "Copy as code" });
    if (!(await panel.evaluate((element) => element.open))) await panel.locator("summary").click();
    await page.getByRole("button", { name: language, exact: true }).click();
    const text = await page.getByLabel("Code", { exact: true }).textContent();
    const save = page.getByRole("button", { name: "Save request.bin" });
    if (await save.count()) await saved(page, save, "request.bin");
    return text;
}

/** Click a button that saves a file, and put the file into the folder of the code. */
export async function saved(page, button, name) {
    const waiting = page.waitForEvent("download");
    await button.click();
    await (await waiting).saveAs(path.join(folder, name));
    return path.join(folder, name);
}

/** Outputs that the code of a language prints, as `[name, shape, flat values]`. */
export async function printed(page, language) {
    const text = await choose(page, language);
    const lines = language === "curl" ? await curlOutputs(text) : language === "JavaScript" ? await scriptOutputs(text) : await pythonOutputs(text);
    return lines.map(([name, shape, values]) => [name, shape, [values].flat(Infinity)]);
}

async function curlOutputs(text) {
    const { stdout } = await run("bash", ["-ec", text], { cwd: folder, timeout: 60_000 });
    const documents = stdout.startsWith("data: ") ? stdout.split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6))) : [JSON.parse(stdout)];
    return documents.flatMap(({ outputs }) => outputs.map(({ name, shape, data }) => [name, shape, data]));
}

async function pythonOutputs(text) {
    await writeFile(path.join(folder, "copied.py"), text);
    python ??= startPython();
    python.process.stdin.write("copied.py\n");
    const found = [];
    for (;;) {
        const { value, done } = await python.lines.next();
        if (done || value === "ended 1") throw new Error(`the copied code failed:\n${text}`);
        if (value === "ended 0") return found;
        found.push(JSON.parse(value));
    }
}

/** It ends with this process, which closes its standard input. */
function startPython() {
    const process_ = spawn(process.env.PYTHON ?? "python3", ["-W", "ignore", "-c", PYTHON], { cwd: folder, stdio: ["pipe", "pipe", "inherit"] });
    for (const each of [process_, process_.stdin, process_.stdout]) each.unref();
    return { process: process_, lines: createInterface({ input: process_.stdout })[Symbol.asyncIterator]() };
}

async function scriptOutputs(text) {
    const printer = "console.log = (...values) => process.stdout.write(`${JSON.stringify(values.length === 1 ? values[0] : values)}\\n`);\n";
    await writeFile(path.join(folder, "copied.mjs"), text.replace(/^((?:import .*\n)*)/, `$1${printer}`));
    const { stdout } = await run(process.execPath, ["copied.mjs"], { cwd: folder, timeout: 60_000 });
    const values = stdout.trim().split("\n").map((line) => JSON.parse(line));
    return values.flatMap((each) => (Array.isArray(each) ? [each] : each.outputs.map(({ name, shape, data }) => [name, shape, data])));
}

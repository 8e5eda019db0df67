// Runs code that the page shows, and returns the outputs that it prints: name, shape, values.

import { execFile } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
/** Where the code runs. */
export const folder = await mkdtemp(path.join(process.env.WORK ?? "/tmp", "copied-"));
const PYTHON = `
import ast, contextlib, io, json, sys
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    exec(compile(open(sys.argv[1]).read(), "copied", "exec"), {"__name__": "__main__"})
for line in shown.getvalue().splitlines():
    if line.startswith("{"):
        for output in ast.literal_eval(line)["outputs"]:
            print(json.dumps([output["name"], output["shape"], output["data"]]))
        continue
    name, _, rest = line.partition(" [")
    shape, _, values = rest.partition("] ")
    plain = ast.literal_eval(values)
    print(json.dumps([name, ast.literal_eval("[" + shape + "]"), plain], default=lambda each: each.decode()))
`;

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
    const { stdout } = await run(process.env.PYTHON ?? "python3", ["-W", "ignore", "-c", PYTHON, "copied.py"], { cwd: folder, timeout: 90_000 });
    return stdout.trim().split("\n").map((line) => JSON.parse(line));
}

async function scriptOutputs(text) {
    const printer = "console.log = (...values) => process.stdout.write(`${JSON.stringify(values.length === 1 ? values[0] : values)}\\n`);\n";
    await writeFile(path.join(folder, "copied.mjs"), text.replace(/^((?:import .*\n)*)/, `$1${printer}`));
    const { stdout } = await run(process.execPath, ["copied.mjs"], { cwd: folder, timeout: 60_000 });
    const values = stdout.trim().split("\n").map((line) => JSON.parse(line));
    return values.flatMap((each) => (Array.isArray(each) ? [each] : each.outputs.map(({ name, shape, data }) => [name, shape, data])));
}

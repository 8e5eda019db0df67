// Imports a TypeScript module of the page into Node.js.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";

const source = path.join(path.dirname(fileURLToPath(import.meta.url)), "../src");

/** `name` is relative to src/, without the suffix. */
export async function load(name) {
    const folder = await mkdtemp(path.join(tmpdir(), "dashboard-"));
    try {
        const outfile = path.join(folder, "module.mjs");
        await build({ entryPoints: [path.join(source, `${name}.ts`)], outfile, bundle: true, format: "esm", logLevel: "error" });
        return await import(pathToFileURL(outfile).href);
    } finally {
        await rm(folder, { recursive: true });
    }
}

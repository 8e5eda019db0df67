// Builds the page into the Python package: index.html, app.js and app.css. The same sources give the same bytes.
//   node build.mjs [--watch] [--out DIRECTORY]

import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import path from "node:path";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const LIMIT_BYTES = 150 * 1024;
const here = path.dirname(fileURLToPath(import.meta.url));
const outAt = process.argv.indexOf("--out");
const out = outAt > 0 ? path.resolve(process.argv[outAt + 1]) : path.join(here, "../src/naiad/frontend/dashboard/files");
const files = ["index.html", "app.js", "app.css"];
const library = /** Libraries in app.js, whose license asks for this notice. */ ["preact", "@preact/signals", "@preact/signals-core", "uplot"];

async function notice() {
    const texts = new Map();
    for (const name of library) {
        const text = (await readFile(path.join(here, "node_modules", name, "LICENSE"), "utf8")).trim();
        texts.set(text, [...(texts.get(text) ?? []), name]);
    }
    return [...texts].map(([text, names]) => `/*\n${names.join(", ")}\n\n${text}\n*/`).join("\n");
}

await mkdir(out, { recursive: true });
const context = await esbuild.context({
    absWorkingDir: here,
    entryPoints: { app: "src/main.tsx", "app-style": "src/style/app.css" },
    outdir: out,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022"],
    charset: "utf8",
    legalComments: "none",
    banner: { js: await notice() },
    logLevel: "warning",
    plugins: [{ name: "html", setup: (build) => build.onEnd(finish) }],
});

async function finish(result) {
    if (result.errors.length) return;
    await writeFile(path.join(out, "app.css"), await readFile(path.join(out, "app-style.css")));
    await rm(path.join(out, "app-style.css"));
    await copyFile(path.join(here, "src/index.html"), path.join(out, "index.html"));
    let total = 0;
    for (const name of files) {
        const content = await readFile(path.join(out, name));
        const packed = gzipSync(content, { level: 9 }).length;
        total += packed;
        console.log(`${name.padEnd(12)} ${String(content.length).padStart(8)} bytes ${String(packed).padStart(8)} gzip`);
    }
    console.log(`total ${String(total).padStart(32)} gzip`);
    if (total > LIMIT_BYTES) throw new Error(`the page has ${total} bytes, more than ${LIMIT_BYTES}`);
}

if (process.argv.includes("--watch")) {
    await context.watch();
} else {
    try {
        await context.rebuild();
    } finally {
        await context.dispose();
    }
}

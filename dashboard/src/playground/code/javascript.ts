/** A request as JavaScript, for browsers and Node.js. */

import { document, encodeCall } from "../wire/infer_body";
import { writeExact } from "../tensor/json";
import { BODY_FILE, type Code, type CodeRequest, KEY_VARIABLE, inferUrl } from "./code_request";

export function fetchCode(request: CodeRequest): Code {
    const { call } = request;
    const { body, headers } = encodeCall(call);
    const needsBody = typeof body !== "string";
    const fields = Object.entries(headers).map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
    if (request.hasKey) fields.push(`    "Authorization": \`Bearer \${process.env.${KEY_VARIABLE}}\`,`);
    // A literal of an object would round integers of 64 bits: then the text of the document is sent as it is.
    const text = writeExact(document(call), 2);
    const isExact = needsBody || writeExact(JSON.parse(text), 2) === text;
    const value = needsBody ? `await readFile("${BODY_FILE}")` : isExact ? `JSON.stringify(${indented(text)})` : JSON.stringify(body);
    const lines = [
        ...(needsBody || call.isAnswerBinary ? [`import { ${[needsBody && "readFile", call.isAnswerBinary && "writeFile"].filter(Boolean).join(", ")} } from "node:fs/promises";`, ""] : []),
        `const response = await fetch(${JSON.stringify(inferUrl(request))}, {`,
        '  method: "POST",',
        "  headers: {",
        ...fields,
        "  },",
        `  body: ${value},`,
        "});",
        "if (!response.ok) throw new Error(await response.text());",
        ...readLines(call.isStream, call.isAnswerBinary),
    ];
    return { text: `${lines.join("\n")}\n`, needsBody };
}

function indented(text: string): string {
    return text.replaceAll("\n", "\n  ");
}

function readLines(isStream: boolean, isAnswerBinary: boolean): string[] {
    if (isAnswerBinary) return ['await writeFile("response.bin", Buffer.from(await response.arrayBuffer()));'];
    if (!isStream) return ["const { outputs } = await response.json();", "for (const { name, shape, data } of outputs) console.log(name, shape, data);"];
    return [
        'let rest = "";',
        "for await (const text of response.body.pipeThrough(new TextDecoderStream())) {",
        '  const lines = (rest + text).split("\\n");',
        "  rest = lines.pop();",
        '  for (const line of lines) if (line.startsWith("data: ")) console.log(JSON.parse(line.slice(6)));',
        "}",
    ];
}

/** A request as a command of a POSIX shell. */

import { encodeCall } from "../wire/infer_body";
import { BODY_FILE, type Code, type CodeRequest, KEY_VARIABLE, inferUrl } from "./code_request";

/** The command prints the response; a binary one goes into a file. */
export function curlCode(request: CodeRequest): Code {
    const { body, headers } = encodeCall(request.call);
    const needsBody = typeof body !== "string";
    const words = [request.call.isStream ? "curl -sSN --fail-with-body" : "curl -sS --fail-with-body"];
    words[0] += ` ${quoted(inferUrl(request))}`;
    for (const [name, value] of Object.entries(headers)) words.push(`-H ${quoted(`${name}: ${value}`)}`);
    if (request.hasKey) words.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
    words.push(needsBody ? `--data-binary @${BODY_FILE}` : `-d ${quoted(body)}`);
    if (request.call.isAnswerBinary) words.push("-D - -o response.bin");
    return { text: `${words.join(" \\\n  ")}\n`, needsBody };
}

/** A word of the shell that means exactly this text. */
export function quoted(text: string): string {
    return `'${text.replaceAll("'", `'\\''`)}'`;
}

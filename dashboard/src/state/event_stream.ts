/** Server-sent events by fetch, because EventSource sends no headers and says nothing of a status. */

import { ApiError, request } from "../api";

/** Read events until the stream ends; calls `onEvent` with each event's name and data. Rejects like `request`. */
export async function readEvents(
    path: string,
    signal: AbortSignal,
    onOpen: () => void,
    onEvent: (name: string, data: string) => void,
): Promise<void> {
    const response = await request(path, { signal, headers: { accept: "text/event-stream" } });
    if (!response.body) throw new ApiError(response.status, "the response has no body");
    onOpen();
    const parser = new EventParser(onEvent);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        parser.push(value);
    }
}

/** Splits text into events, as the HTML standard says; `id` and `retry` have no meaning here. */
export class EventParser {
    /** The pieces of a line that has not ended: a long one is put together once, not with each piece. */
    private rest: string[] = [];
    private name = "";
    private data: string[] = [];

    constructor(private readonly onEvent: (name: string, data: string) => void) {}

    push(text: string): void {
        this.rest.push(text);
        if (this.rest.length > 1 && !/[\r\n]/.test(text) && !this.rest.at(-2)?.endsWith("\r")) return;
        const lines = this.rest.join("").split(/\r\n|\n|\r(?=[^])/);
        this.rest = [lines.pop() ?? ""];
        for (const line of lines) this.line(line);
    }

    private line(line: string): void {
        if (line === "") {
            if (this.data.length) this.onEvent(this.name || "message", this.data.join("\n"));
            this.name = "";
            this.data = [];
            return;
        }
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") this.name = value;
        else if (field === "data") this.data.push(value);
    }
}

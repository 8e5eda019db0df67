/** Requests to the server that has sent the page, with the user's API key if there is one. */

import { signal } from "@preact/signals";

const KEY = "naiad-api-key";

/** Where `v2/` is: the directory of the page, so that a proxy may add any prefix to the path, also `/dashboard/`. */
export const root = new URL(location.pathname.replace(/[^/]*$/, ""), location.href);

/** The API key of this tab. It is kept until the tab closes. */
export const apiKey = signal(readKey());

function readKey(): string {
    try {
        return sessionStorage.getItem(KEY) ?? "";
    } catch {
        return ""; // The browser stores nothing for this page.
    }
}

/** Characters that no header has, such as those without a width in copied text, are left out. */
export function setApiKey(key: string): void {
    apiKey.value = key.replace(/[^\x21-\x7e]/g, "");
    try {
        sessionStorage.setItem(KEY, apiKey.value);
    } catch {
        // The key is then kept by the page alone.
    }
}

/** A response other than 2xx; `message` is the server's. */
export class ApiError extends Error {
    constructor(readonly status: number, message: string) {
        super(message);
    }
}

/** The address of a path such as `v2/models`. Parts that are names are encoded with `encodeURIComponent` before. */
export function address(path: string): string {
    return new URL(path, root).href;
}

/** The path of a model, or of one of its versions, such as `v2/models/digits/versions/2`. */
export function modelPath(model: string, version?: string): string {
    const path = `v2/models/${encodeURIComponent(model)}`;
    return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

/** Headers that every request needs: the key. */
export function keyHeaders(): Record<string, string> {
    return apiKey.value ? { authorization: `Bearer ${apiKey.value}` } : {};
}

/** Like `fetch`, relative to the server and with the key. Rejects with ApiError if the status is not 2xx. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
    const headers = { ...keyHeaders(), ...(options.headers as Record<string, string> | undefined) };
    const response = await fetch(address(path), { ...options, headers, credentials: "same-origin", cache: "no-store" });
    if (!response.ok) throw new ApiError(response.status, await messageOf(response));
    return response;
}

/** A GET whose response is JSON. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await (await request(path, signal ? { signal } : {})).json()) as T;
}

/** A POST of JSON whose response is JSON, or nothing. */
export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    const response = await request(path, {
        method: "POST",
        body: JSON.stringify(body),
        headers: { "content-type": "application/json" },
        ...(signal ? { signal } : {}),
    });
    const text = await response.text();
    return (text ? JSON.parse(text) : {}) as T;
}

async function messageOf(response: Response): Promise<string> {
    const text = await response.text().catch(() => "");
    try {
        const parsed = JSON.parse(text) as { error?: unknown };
        if (typeof parsed.error === "string") return parsed.error;
    } catch {
        // Not of naiad but of a proxy, for example.
    }
    return text.trim().slice(0, 300) || `${response.status} ${response.statusText}`;
}

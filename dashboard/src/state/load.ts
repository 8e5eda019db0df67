/** A resource of the server that a view needs once, or from time to time while the page is seen. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api";
import { connection } from "./connection";

export type Loaded<T> = { value: T | null; error: string | null };

/**
 * Load JSON of `path` now, again every `every_ms` (0: never), and whenever `again` changes or the server is back.
 * Nothing is loaded for an empty path.
 */
export function useLoaded<T>(path: string, every_ms = 0, again: unknown = 0): ReadonlySignal<Loaded<T>> {
    const state = useMemo(() => signal<Loaded<T>>({ value: null, error: null }), [path]);
    const isOpen = connection.value.phase === "open";
    useEffect(() => {
        if (!path || !isOpen) return;
        const stop = new AbortController();
        let timer = 0;
        const load = async () => {
            try {
                // A page that was opened in the background loads once: it may have no second time.
                if (!document.hidden || state.peek().value === null) state.value = { value: await get<T>(path, stop.signal), error: null };
            } catch (error) {
                if (stop.signal.aborted) return;
                state.value = { value: state.peek().value, error: error instanceof Error ? error.message : String(error) };
            }
            if (every_ms && !stop.signal.aborted) timer = setTimeout(() => void load(), every_ms);
        };
        void load();
        return () => {
            stop.abort();
            clearTimeout(timer);
        };
    }, [path, every_ms, again, isOpen]);
    return state;
}

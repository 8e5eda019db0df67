/** A question before a change, and the change's result. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Question {
    title: string;
    text: ComponentChildren;
    /** What the button says: a verb. */
    action: string;
    isDangerous?: boolean;
    run: () => Promise<string>;
}

const question = signal<Question | null>(null);
const progress = signal<"asking" | "running" | { error: string }>("asking");
/** What the last change did, for all to see and for screen readers. */
export const notice = signal<string>("");

/** Ask before `run`, whose result is a sentence about what was done. */
export function ask(asked: Question): void {
    progress.value = "asking";
    question.value = asked;
}

export function Dialog() {
    const element = useRef<HTMLDialogElement>(null);
    const asked = question.value;
    const state = progress.value;
    useEffect(() => {
        if (asked && element.current && !element.current.open) element.current.showModal();
        if (!asked && element.current?.open) element.current.close();
    }, [asked]);
    const run = async () => {
        if (!asked) return;
        progress.value = "running";
        try {
            notice.value = await asked.run();
            question.value = null;
            setTimeout(() => (notice.value = ""), 6000);
        } catch (error) {
            progress.value = { error: error instanceof Error ? error.message : String(error) };
        }
    };
    return (
        <dialog ref={element} class="dialog" aria-labelledby="dialog-title" onClose={() => (question.value = null)}>
            {asked && (
                <form method="dialog" onSubmit={(event) => (event.preventDefault(), void run())}>
                    <h2 id="dialog-title">{asked.title}</h2>
                    <div class="dialog-text">{asked.text}</div>
                    {typeof state === "object" && <p class="problem" role="alert">{state.error}</p>}
                    <div class="buttons">
                        <button type="button" class="quiet" onClick={() => (question.value = null)}>Cancel</button>
                        <button type="submit" class={asked.isDangerous ? "danger" : "primary"} disabled={state === "running"}>
                            {state === "running" ? "Working…" : asked.action}
                        </button>
                    </div>
                </form>
            )}
        </dialog>
    );
}

export function Notice() {
    return <div class="notice" role="status" aria-live="polite">{notice.value && <p>{notice.value}</p>}</div>;
}

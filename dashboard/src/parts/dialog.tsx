/** A question before a change, and the change's result. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { visible } from "../format";

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

let endOfNotice = 0;

function tell(text: string): void {
    notice.value = text;
    clearTimeout(endOfNotice);
    endOfNotice = setTimeout(() => (notice.value = ""), 6000);
}

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
            tell(await asked.run());
            if (question.peek() === asked) question.value = null;
        } catch (error) {
            const text = error instanceof Error ? error.message : String(error);
            // The dialog may have been closed meanwhile, and another question be open.
            if (question.peek() === asked) progress.value = { error: text };
            else tell(text);
        }
    };
    return (
        <dialog ref={element} class="dialog" aria-labelledby="dialog-title" onClose={() => (question.value = null)}>
            {asked && (
                <form method="dialog" onSubmit={(event) => (event.preventDefault(), void run())}>
                    <h2 id="dialog-title">{asked.title}</h2>
                    <div class="dialog-text">{asked.text}</div>
                    {typeof state === "object" && <p class="problem" role="alert">{visible(state.error)}</p>}
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
    return <div class="notice" role="status" aria-live="polite">{notice.value && <p>{visible(notice.value)}</p>}</div>;
}

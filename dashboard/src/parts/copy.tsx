/** A button that copies text, and says that it did. */

import { useSignal } from "@preact/signals";

export function Copy(props: { text: string; label: string; children?: string }) {
    const state = useSignal<"idle" | "done" | "failed">("idle");
    const copy = async () => {
        state.value = (await toClipboard(props.text)) ? "done" : "failed";
        setTimeout(() => (state.value = "idle"), 1600);
    };
    const shown = { idle: props.children ?? "Copy", done: "Copied", failed: "Select and copy it" }[state.value];
    return (
        <button type="button" class="quiet small" aria-label={props.label} onClick={() => void copy()}>
            <span aria-live="polite">{shown}</span>
        </button>
    );
}

/** Pages of plain HTTP hosts have no clipboard API; a selection that is copied works there. */
async function toClipboard(text: string): Promise<boolean> {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        const field = document.createElement("textarea");
        field.value = text;
        field.className = "out-of-sight";
        const focused = document.activeElement;
        document.body.append(field);
        field.select();
        const isDone = document.execCommand("copy");
        field.remove();
        if (focused instanceof HTMLElement) focused.focus();
        return isDone;
    }
}

/** A command to copy. */
export function Command(props: { text: string }) {
    return (
        <div class="command">
            <pre tabIndex={0} aria-label="Command">{props.text}</pre>
            <Copy text={props.text} label="Copy the command" />
        </div>
    );
}

/** The request of the form as code to copy. */

import { useSignal } from "@preact/signals";
import { apiKey, root } from "../../api";
import { Copy } from "../../parts/copy";
import type { FormState } from "../form/form_state";
import { InputProblem } from "../tensor/elements";
import { saveFile } from "../save_file";
import { BODY_FILE, type Code, type CodeRequest, KEY_VARIABLE, bodyOf, callForCode } from "./code_request";
import { curlCode } from "./curl";
import { fetchCode } from "./javascript";
import { requestsCode, tritonCode } from "./python";

const LANGUAGES = {
    curl: { name: "curl", make: curlCode },
    tritonclient: { name: "Python (tritonclient)", make: tritonCode },
    requests: { name: "Python (requests)", make: requestsCode },
    fetch: { name: "JavaScript", make: fetchCode },
} as const;
type Language = keyof typeof LANGUAGES;
const MAX_SHOWN = 100_000;

export function CodePanel(props: { form: FormState; version: string | undefined }) {
    const isOpen = useSignal(false);
    return (
        <details class="pg-panel" open={isOpen.value} onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
            <summary><h2>Copy as code</h2></summary>
            {isOpen.value && <Shown {...props} />}
        </details>
    );
}

function Shown(props: { form: FormState; version: string | undefined }) {
    const language = useSignal<Language>("curl");
    let request: CodeRequest;
    let code: Code;
    try {
        request = requestOf(props.form, props.version);
        code = LANGUAGES[language.value].make(request);
    } catch (error) {
        if (!(error instanceof InputProblem)) throw error;
        return <p class="quiet-text">The form is not complete: {error.message}</p>;
    }
    const pictures = [...request.pictures.values()].map(({ fileName }) => fileName);
    const needsPicture = pictures.length > 0 && language.value !== "curl" && language.value !== "fetch" && !(language.value === "requests" && code.needsBody);
    return (
        <>
            <div class="pg-kinds" role="group" aria-label="Language">
                {Object.entries(LANGUAGES).map(([key, { name }]) => (
                    <button key={key} type="button" class="small" aria-pressed={key === language.value} onClick={() => (language.value = key as Language)}>{name}</button>
                ))}
            </div>
            <div class="pg-code-box">
                <pre tabIndex={0} aria-label="Code">{code.text.slice(0, MAX_SHOWN)}{code.text.length > MAX_SHOWN && "…"}</pre>
                <Copy text={code.text} label="Copy the code" />
            </div>
            {code.needsBody && (
                <p class="quiet-text">
                    It reads <code>{BODY_FILE}</code>, the inputs as bytes.{" "}
                    <button type="button" class="quiet small" onClick={() => saveFile(new Blob([bodyOf(request)]), BODY_FILE)}>Save {BODY_FILE}</button>
                </p>
            )}
            {needsPicture && <p class="quiet-text">It reads the picture {pictures.map((name) => `'${name}'`).join(", ")} from the current folder, with Pillow.</p>}
            {request.hasKey && <p class="quiet-text">Put your key into the environment as <code>{KEY_VARIABLE}</code>: it is not part of the code.</p>}
        </>
    );
}

/** The request of the form, as the code says it. Throws InputProblem. */
function requestOf(form: FormState, version: string | undefined): CodeRequest {
    return {
        root: root.href,
        model: form.model.name,
        version: version ?? "",
        call: callForCode(form.call("", true), form.model),
        pictures: form.pictures(),
        hasKey: apiKey.value !== "",
    };
}

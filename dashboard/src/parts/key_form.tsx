/** The field for an API key: where a key may open what the server refuses. */

import { useSignal } from "@preact/signals";
import { apiKey, setApiKey } from "../api";

export function KeyForm(props: { action: string }) {
    const key = useSignal(apiKey.value);
    const isEntered = apiKey.value !== "";
    return (
        <form class="key-form" onSubmit={(event) => (event.preventDefault(), setApiKey(key.value))}>
            <label>
                <span>API key</span>
                <input type="password" autocomplete="off" value={key.value} onInput={(event) => (key.value = event.currentTarget.value)} />
            </label>
            <button type="submit" class="primary">{props.action}</button>
            {isEntered && <button type="button" class="quiet" onClick={() => setApiKey((key.value = ""))}>Forget the key</button>}
            <p class="hint">The key stays in this tab until it closes, and is sent to this server alone.</p>
        </form>
    );
}

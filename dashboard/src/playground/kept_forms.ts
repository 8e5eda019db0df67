/** The forms of the models that were tried last: what was entered stays for the life of the page. */

import { FormState } from "./form/form_state";
import type { ModelDescription } from "./wire/model";

export const MAX_FORMS = 8;
/** Forms with pictures and sound may be large: the oldest go first, the newest stays. */
export const MAX_HELD_BYTES = 256 << 20;

/** In the order of their last use, the newest last. */
const kept = new Map<string, FormState>();

/** The form of a model with what was entered before, or a new one. A model that has changed begins anew. */
export function formOf(model: ModelDescription, version: string | undefined): FormState {
    const key = JSON.stringify([model.name, version ?? ""]);
    const before = kept.get(key);
    const isSame = before && JSON.stringify(before.model) === JSON.stringify(model);
    const form = isSame ? before : new FormState(model);
    if (!isSame) form.fillExample(model.warmups[0]);
    kept.delete(key);
    kept.set(key, form);
    dropOldest();
    return form;
}

function dropOldest(): void {
    let heldBytes = 0;
    let count = 0;
    for (const [key, form] of [...kept].toReversed()) {
        heldBytes += form.heldBytes();
        if (++count > 1 && (count > MAX_FORMS || heldBytes > MAX_HELD_BYTES)) kept.delete(key);
    }
}

/** Editors of values: a field for each element, JSON, generated values. */

import { elementCount } from "../tensor/datatypes";
import { isFloat } from "../tensor/datatypes";
import type { InputState } from "./input_state";
import { MAX_FIELDS } from "./editors";
import { FILL_NAMES, type Fill } from "./examples";

export function FieldsEditor(props: { input: InputState }) {
    const { input } = props;
    const count = elementCount(input.shape.value);
    if (count > MAX_FIELDS) {
        return <p class="quiet-text">{count} values are too many for fields: write JSON, or let the page generate them.</p>;
    }
    const { datatype } = input.spec;
    const columns = Math.min(input.shape.value.at(-1) ?? 1, 8);
    const set = (index: number, text: string) => {
        input.texts.value = input.texts.value.map((each, at) => (at === index ? text : each));
    };
    const labelOf = (index: number) => `${input.spec.name} ${placeOf(index, input.shape.value)}`.trim();
    return (
        <div class={datatype === "BYTES" ? "pg-texts" : `pg-grid pg-columns-${columns}`}>
            {input.texts.value.map((text, index) => {
                if (datatype === "BYTES") {
                    return <textarea key={index} rows={count > 1 ? 1 : 3} aria-label={labelOf(index)} value={text} onInput={(event) => set(index, event.currentTarget.value)} />;
                }
                if (datatype === "BOOL") {
                    const isOn = text === "true" || text === "1";
                    return (
                        <label key={index} class="pg-check">
                            <input type="checkbox" aria-label={labelOf(index)} checked={isOn} onChange={(event) => set(index, String(event.currentTarget.checked))} />
                            {count > 1 ? index : "true"}
                        </label>
                    );
                }
                return (
                    <input
                        key={index} type="text" inputMode={isFloat(datatype) ? "decimal" : "numeric"} autocomplete="off" spellcheck={false}
                        aria-label={labelOf(index)} value={text} onInput={(event) => set(index, event.currentTarget.value)}
                        onFocus={(event) => event.currentTarget.select()}
                    />
                );
            })}
        </div>
    );
}

/** `[1, 4]` for an element of a matrix; nothing for a single element. */
function placeOf(index: number, shape: readonly number[]): string {
    if (elementCount(shape) === 1) return "";
    const places = [];
    let rest = index;
    for (const size of shape.toReversed()) {
        places.unshift(rest % size);
        rest = Math.floor(rest / size);
    }
    return `[${places.join(", ")}]`;
}

export function JsonEditor(props: { input: InputState }) {
    const { input } = props;
    const example = input.spec.datatype === "BYTES" ? '["some text"]' : input.spec.shape.length > 1 ? "[[1, 2, 3], [4, 5, 6]]" : "[1, 2, 3]";
    return (
        <textarea
            class="pg-code" rows={6} spellcheck={false} aria-label={`${input.spec.name} as JSON`} placeholder={example}
            value={input.json.value} onInput={(event) => (input.json.value = event.currentTarget.value)}
        />
    );
}

export function GeneratedEditor(props: { input: InputState }) {
    const { input } = props;
    const count = elementCount(input.shape.value);
    return (
        <div class="pg-row">
            <label class="pg-small">
                Fill with
                <select value={input.fill.value} onChange={(event) => input.setFill(event.currentTarget.value as Fill)}>
                    {Object.entries(FILL_NAMES).map(([fill, name]) => <option key={fill} value={fill}>{name}</option>)}
                </select>
            </label>
            <span class="quiet-text">{count.toLocaleString("en")} values</span>
        </div>
    );
}

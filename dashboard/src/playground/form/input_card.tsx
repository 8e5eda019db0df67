/** One input of the form: its name and shape, a choice of editors, and the editor. */

import { Text } from "../../parts/blocks";
import type { InputState } from "./input_state";
import { EDITOR_NAMES, freeAxes } from "./editors";
import { PictureEditor } from "./picture_editor";
import { FileEditor, SoundEditor } from "./media_editors";
import { FieldsEditor, GeneratedEditor, JsonEditor } from "./value_editors";

export function shownShape(shape: readonly number[]): string {
    return shape.length ? shape.map((size) => (size < 0 ? "?" : size)).join(" × ") : "scalar";
}

export function InputCard(props: { input: InputState; onPicture: () => void }) {
    const { input } = props;
    const { spec } = input;
    const kind = input.kind.value;
    const problemId = `${fieldId(spec.name)}-problem`;
    return (
        <fieldset class="pg-input" aria-describedby={input.problem.value ? problemId : undefined}>
            <legend>
                <span class="pg-name"><Text>{spec.name}</Text></span>
                <span class="pg-type">{spec.datatype}</span>
                <span class="pg-type">{shownShape(spec.shape)}</span>
            </legend>
            {spec.isOptional && (
                <label class="pg-check">
                    <input type="checkbox" checked={input.isSent.value} onChange={(event) => (input.isSent.value = event.currentTarget.checked)} />
                    Send this optional input
                </label>
            )}
            {input.isSent.value && (
                <>
                    {input.kinds.length > 1 && (
                        <div class="pg-kinds" role="group" aria-label={`How to enter ${spec.name}`}>
                            {input.kinds.map((each) => (
                                <button key={each} type="button" class="small" aria-pressed={each === kind} onClick={() => (input.kind.value = each)}>
                                    {EDITOR_NAMES[each]}
                                </button>
                            ))}
                        </div>
                    )}
                    {(kind === "values" || kind === "text" || kind === "fill") && <Dimensions input={input} />}
                    <Editor input={input} onPicture={props.onPicture} />
                </>
            )}
            {input.problem.value && <p class="problem" id={problemId} role="alert">{input.problem.value}</p>}
        </fieldset>
    );
}

function Editor(props: { input: InputState; onPicture: () => void }) {
    switch (props.input.kind.value) {
        case "values":
        case "text":
            return <FieldsEditor input={props.input} />;
        case "json":
            return <JsonEditor input={props.input} />;
        case "fill":
            return <GeneratedEditor input={props.input} />;
        case "picture":
            return <PictureEditor input={props.input} onPicture={props.onPicture} />;
        case "audio":
            return <SoundEditor input={props.input} />;
        case "file":
            return <FileEditor input={props.input} />;
    }
}

const MAX_DIMENSION = 1 << 24;

/** Sizes of the free dimensions. */
function Dimensions(props: { input: InputState }) {
    const { input } = props;
    const axes = freeAxes(input.spec);
    if (!axes.length) return null;
    const set = (axis: number, text: string) => {
        const size = Number(text);
        if (!Number.isInteger(size) || size < 0 || size > MAX_DIMENSION) return;
        input.setShape(input.shape.value.map((each, index) => (index === axis ? size : each)));
    };
    return (
        <div class="pg-row">
            {axes.map((axis) => (
                <label key={axis} class="pg-small">
                    {axis === 0 && input.model.isBatched ? "Rows (batch)" : `Size of dimension ${axis}`}
                    <input type="number" min={0} max={MAX_DIMENSION} value={input.shape.value[axis]} onInput={(event) => set(axis, event.currentTarget.value)} />
                </label>
            ))}
        </div>
    );
}

/** An id of the document for a name, which may have any characters. */
export function fieldId(name: string): string {
    return `pg-${Array.from(name, (character) => (/[\w-]/.test(character) ? character : `_${character.codePointAt(0)!.toString(16)}`)).join("")}`;
}

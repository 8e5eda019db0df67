/** The form: inputs or rows, options, examples, and the button that sends. */

import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import type { RunState } from "../result/run_state";
import { columnsOf, rowLimit, takesRows } from "./csv";
import { type FormState, canClassify } from "./form_state";
import { InputCard } from "./input_card";

export function Form(props: { form: FormState; run: RunState }) {
    const { form, run } = props;
    const { model } = form;
    const isRunning = run.run.value.phase === "running";
    const onPicture = () => {
        if (form.isEager.value) void run.send();
    };
    return (
        <form
            class="pg-form" aria-label={`Request for ${model.name}`}
            onSubmit={(event) => {
                event.preventDefault();
                void run.send();
            }}
            onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void run.send();
            }}
        >
            <div class="pg-head">
                <h2>Request</h2>
                <Examples form={form} />
            </div>
            {model.notes.map((note) => <p key={note} class="quiet-text"><Text>{note}</Text></p>)}
            {takesRows(model) && (
                <div class="pg-kinds" role="group" aria-label="What to send">
                    {(["inputs", "rows"] as const).map((source) => (
                        <button key={source} type="button" class="small" aria-pressed={form.source.value === source} onClick={() => (form.source.value = source)}>
                            {source === "inputs" ? "Inputs" : "Rows (CSV)"}
                        </button>
                    ))}
                </div>
            )}
            {form.source.value === "rows" ? <Rows form={form} /> : form.inputs.map((input) => <InputCard key={input.spec.name} input={input} onPicture={onPicture} />)}
            {model.isSequence && <Sequence form={form} />}
            <Options form={form} />
            <div class="pg-send">
                {isRunning ? (
                    <button key="cancel" type="button" class="danger" onClick={() => run.cancel()}>Cancel</button>
                ) : (
                    // A button of its own: one that became "Send" within its click would send.
                    <button key="send" type="submit" class="primary">Send</button>
                )}
                <span class="quiet-text"><kbd>Ctrl</kbd> <kbd>Enter</kbd></span>
            </div>
        </form>
    );
}

function Examples(props: { form: FormState }) {
    const { form } = props;
    const { warmups } = form.model;
    if (!warmups.length) {
        return <button type="button" class="quiet small" onClick={() => form.fillExample()}>Fill with example</button>;
    }
    return (
        <select
            class="pg-examples" aria-label="Fill with example" value=""
            onChange={(event) => {
                const index = Number(event.currentTarget.value);
                form.fillExample(warmups[index]);
                event.currentTarget.value = "";
            }}
        >
            <option value="" disabled>Fill with example…</option>
            {warmups.map((each, index) => <option key={index} value={index}>{each.name}</option>)}
            <option value={-1}>random values</option>
        </select>
    );
}

function Rows(props: { form: FormState }) {
    const { form } = props;
    const columns = columnsOf(form.model);
    const limit = rowLimit(form.model);
    const take = async (file: File | undefined) => {
        if (!file) return;
        if (file.size > 4 << 20) form.rowsProblem.value = "files of more than 4 MB are for 'naiad predict'";
        else form.rows.value = await file.text();
    };
    return (
        <fieldset
            class="pg-input" onDragOver={(event) => event.preventDefault()}
            onDrop={(event) => {
                event.preventDefault();
                void take(event.dataTransfer?.files[0]);
            }}
        >
            <legend><span class="pg-name">Rows</span><span class="pg-type">{limit === 1 ? "one row" : `at most ${limit} rows`}</span></legend>
            <p class="quiet-text">A header with the columns {columns.slice(0, 8).map((name, index) => <span key={index}>{index > 0 && ", "}<code><Text>{name}</Text></code></span>)}{columns.length > 8 && ` and ${columns.length - 8} more`}, in any order.</p>
            <textarea class="pg-code" rows={7} spellcheck={false} aria-label="Rows as CSV" value={form.rows.value} onInput={(event) => (form.rows.value = event.currentTarget.value)} />
            <label class="pg-small">
                CSV file
                <input type="file" accept=".csv,.tsv,text/csv" onChange={(event) => void take(event.currentTarget.files?.[0])} />
            </label>
            {form.rowsProblem.value && <p class="problem" role="alert">{form.rowsProblem.value}</p>}
        </fieldset>
    );
}

function Sequence(props: { form: FormState }) {
    const { form } = props;
    return (
        <fieldset class="pg-input">
            <legend><span class="pg-name">Sequence</span></legend>
            <div class="pg-row">
                <label class="pg-small">
                    Id, a number or a name
                    <input type="text" value={form.sequenceId.value} onInput={(event) => (form.sequenceId.value = event.currentTarget.value)} />
                </label>
                <label class="pg-check">
                    <input type="checkbox" checked={form.isSequenceStart.value} onChange={(event) => (form.isSequenceStart.value = event.currentTarget.checked)} /> Start
                </label>
                <label class="pg-check">
                    <input type="checkbox" checked={form.isSequenceEnd.value} onChange={(event) => (form.isSequenceEnd.value = event.currentTarget.checked)} /> End
                </label>
            </div>
        </fieldset>
    );
}

function Options(props: { form: FormState }) {
    const { form } = props;
    const outputs = form.model.outputs.filter(canClassify);
    const isOpen = useSignal(false);
    return (
        <details class="pg-settings" open={isOpen.value} onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
            <summary>Options</summary>
            <div class="pg-row">
                <label class="pg-check">
                    <input type="checkbox" checked={form.isStream.value} disabled={form.model.isDecoupled} onChange={(event) => (form.isStream.value = event.currentTarget.checked)} />
                    Responses as a stream{form.model.isDecoupled && " (the model is decoupled)"}
                </label>
                {form.inputs.some((input) => input.kinds.includes("picture")) && (
                    <label class="pg-check">
                        <input type="checkbox" checked={form.isEager.value} onChange={(event) => (form.isEager.value = event.currentTarget.checked)} />
                        Send as soon as a picture is chosen
                    </label>
                )}
            </div>
            {!form.isStream.value && outputs.length > 0 && (
                <div class="pg-row">
                    {outputs.map((output) => <Classes key={output.name} form={form} name={output.name} />)}
                </div>
            )}
            <label class="pg-small">
                Parameters of the request, an object in JSON
                <input type="text" class="pg-code" placeholder={'{"temperature": 0.5}'} value={form.parameters.value} onInput={(event) => (form.parameters.value = event.currentTarget.value)} />
            </label>
            {form.parametersProblem.value && <p class="problem" role="alert">{form.parametersProblem.value}</p>}
        </details>
    );
}

function Classes(props: { form: FormState; name: string }) {
    const count = props.form.classes.get(props.name);
    if (!count) return null;
    return (
        <label class="pg-small">
            <span>Answer of <Text>{props.name}</Text></span>
            <select value={count.value} onChange={(event) => (count.value = Number(event.currentTarget.value))}>
                <option value={0}>all values</option>
                {[1, 3, 5, 10, 20].map((each) => <option key={each} value={each}>{each === 1 ? "the best class" : `the best ${each} classes`}</option>)}
            </select>
        </label>
    );
}

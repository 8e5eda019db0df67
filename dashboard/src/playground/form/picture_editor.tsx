/** A picture as an input: drop, paste or choose it, and say how its pixels become numbers. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import { InputProblem } from "../tensor/elements";
import { examplePicture } from "../picture/example_picture";
import { readPicture, toPng, toRgba } from "../picture/read_file";
import type { Fit, Pixels } from "../picture/resize";
import { type Colors, MAX_SIDE, PRESETS, presetOf } from "../picture/settings";
import type { Layout } from "../picture/layout";
import { saveFile } from "../save_file";
import type { InputState } from "./input_state";

export function PictureEditor(props: { input: InputState; onPicture: () => void }) {
    const { input } = props;
    const isOver = useSignal(false);
    const chooser = useRef<HTMLInputElement>(null);
    const take = async (file: File | undefined) => {
        if (!file) return;
        try {
            input.picture.value = await readPicture(file);
            input.problem.value = "";
            props.onPicture();
        } catch (error) {
            if (!(error instanceof InputProblem)) throw error;
            input.problem.value = error.message;
        }
    };
    useEffect(() => {
        const onPaste = (event: ClipboardEvent) => {
            const file = Array.from(event.clipboardData?.files ?? []).find((each) => each.type.startsWith("image/"));
            if (!file) return;
            event.preventDefault();
            void take(file);
        };
        document.addEventListener("paste", onPaste);
        return () => document.removeEventListener("paste", onPaste);
    }, [input]);
    const picture = input.picture.value;
    return (
        <>
            <div
                class={`pg-drop ${isOver.value ? "over" : ""}`}
                onDragOver={(event) => {
                    event.preventDefault();
                    isOver.value = true;
                }}
                onDragLeave={() => (isOver.value = false)}
                onDrop={(event) => {
                    event.preventDefault();
                    isOver.value = false;
                    void take(event.dataTransfer?.files[0]);
                }}
            >
                {picture && <Seen input={input} />}
                <div class="pg-drop-words">
                    {picture ? (
                        <p><strong><Text>{picture.fileName}</Text></strong><br /><span class="quiet-text">{picture.pixels.width} × {picture.pixels.height} pixels</span></p>
                    ) : (
                        <p>Drop a picture here, or paste one.</p>
                    )}
                    <div class="buttons">
                        <button type="button" onClick={() => chooser.current?.click()}>Choose a picture…</button>
                        {picture?.fileName !== examplePicture().fileName && (
                            <button type="button" class="quiet" onClick={() => (input.picture.value = examplePicture())}>Example</button>
                        )}
                        {picture?.fileName === examplePicture().fileName && (
                            <button type="button" class="quiet" onClick={() => void toPng(picture.pixels).then((blob) => saveFile(blob, picture.fileName))}>Save it</button>
                        )}
                    </div>
                    <input
                        ref={chooser} class="out-of-sight" type="file" accept="image/*" tabIndex={-1} aria-label={`Picture for ${input.spec.name}`}
                        onChange={(event) => {
                            void take(event.currentTarget.files?.[0]);
                            event.currentTarget.value = "";
                        }}
                    />
                </div>
            </div>
            <Settings input={input} />
        </>
    );
}

/** What the model sees. */
function Seen(props: { input: InputState }) {
    let pixels: Pixels | undefined;
    try {
        pixels = props.input.seenPicture();
    } catch (error) {
        if (!(error instanceof InputProblem)) throw error;
        return <p class="problem">{error.message}</p>;
    }
    return pixels ? (
        <figure class="pg-seen">
            <Canvas pixels={pixels} label={`What the model sees of ${props.input.picture.value?.fileName ?? "the picture"}`} />
            <figcaption>{pixels.width} × {pixels.height}</figcaption>
        </figure>
    ) : null;
}

export function Canvas(props: { pixels: Pixels; label: string }) {
    const canvas = useRef<HTMLCanvasElement>(null);
    useEffect(() => {
        canvas.current?.getContext("2d")?.putImageData(toRgba(props.pixels), 0, 0);
    }, [props.pixels]);
    return <canvas ref={canvas} width={props.pixels.width} height={props.pixels.height} role="img" aria-label={props.label} />;
}

function Settings(props: { input: InputState }) {
    const { input } = props;
    const settings = input.settings.value;
    const preset = presetOf(settings);
    const isFree = input.spec.shape.slice(-3).some((size, axis) => size < 0 && axis !== (settings.layout === "NCHW" ? 0 : 2));
    return (
        <details class="pg-settings">
            <summary>How its pixels become numbers: <span class="quiet-text">{settings.layout}, {settings.colors}, {preset ?? "own scale"}, {settings.fit}</span></summary>
            <div class="pg-row">
                <Choice<Layout> label="Layout" value={settings.layout} options={{ NCHW: "NCHW", NHWC: "NHWC" }} onChange={(layout) => input.setSettings({ layout })} />
                <Choice<Colors> label="Colors" value={settings.colors} options={{ RGB: "RGB", BGR: "BGR", GRAY: "gray" }} onChange={(colors) => input.setSettings({ colors })} />
                <Choice<Fit> label="Fit" value={settings.fit} options={{ crop: "crop", stretch: "stretch", pad: "pad" }} onChange={(fit) => input.setSettings({ fit })} />
                <Choice<string>
                    label="Values" value={preset ?? ""} options={{ ...Object.fromEntries(Object.keys(PRESETS).map((name) => [name, name])), ...(preset ? {} : { "": "own" }) }}
                    onChange={(name) => PRESETS[name] && input.setSettings(PRESETS[name])}
                />
                <Choice<"1" | "255">
                    label="White is" value={settings.scale === 255 ? "255" : "1"} options={{ "1": "1", "255": "255" }}
                    onChange={(scale) => input.setSettings({ scale: scale === "255" ? 255 : 1 })}
                />
                <NumbersField label="Mean" values={settings.mean} isAllowed={() => true} onChange={(mean) => input.setSettings({ mean })} />
                <NumbersField label="Std" values={settings.std} isAllowed={(value) => value !== 0} onChange={(std) => input.setSettings({ std })} />
                {isFree && <SideField label="Height" value={settings.height} onChange={(height) => input.setSettings({ height })} />}
                {isFree && <SideField label="Width" value={settings.width} onChange={(width) => input.setSettings({ width })} />}
            </div>
            <p class="quiet-text">(pixel − mean) / std, for each channel. This page remembers it for this model.</p>
        </details>
    );
}

function Choice<T extends string>(props: { label: string; value: T; options: Record<T, string>; onChange: (value: T) => void }) {
    return (
        <label class="pg-small">
            {props.label}
            <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value as T)}>
                {Object.entries<string>(props.options).map(([value, name]) => <option key={value} value={value}>{name}</option>)}
            </select>
        </label>
    );
}

function NumbersField(props: { label: string; values: number[]; isAllowed: (value: number) => boolean; onChange: (values: number[]) => void }) {
    const text = useSignal<string | undefined>(undefined);
    const parsed = (value: string) => value.split(/[\s,;/]+/).filter(Boolean).map(Number);
    const isRight = (values: number[]) => values.length > 0 && values.length <= 4 && values.every((each) => Number.isFinite(each) && props.isAllowed(each));
    const isWrong = text.value !== undefined && !isRight(parsed(text.value));
    return (
        <label class="pg-small">
            {props.label}
            <input
                type="text" inputMode="decimal" size={16} aria-invalid={isWrong} value={text.value ?? props.values.join(", ")}
                onInput={(event) => {
                    text.value = event.currentTarget.value;
                    const values = parsed(text.value);
                    if (isRight(values)) props.onChange(values);
                }}
                onBlur={() => (text.value = undefined)}
            />
        </label>
    );
}

function SideField(props: { label: string; value: number; onChange: (value: number) => void }) {
    return (
        <label class="pg-small">
            {props.label}
            <input
                type="number" min={0} max={MAX_SIDE} placeholder="as it is" value={props.value || ""}
                onInput={(event) => {
                    const size = Number(event.currentTarget.value);
                    if (Number.isInteger(size) && size >= 0 && size <= MAX_SIDE) props.onChange(size);
                }}
            />
        </label>
    );
}

/** Sound, from a file or the microphone, and any file as the bytes of an element. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import { InputProblem } from "../tensor/elements";
import type { InputState } from "./input_state";
import { readSound, record } from "./sound";

const RATES = [8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

export function SoundEditor(props: { input: InputState }) {
    const { input } = props;
    const source = useRef<{ blob: Blob; name: string } | undefined>(undefined);
    const recording = useSignal<AbortController | undefined>(undefined);
    // Who leaves the form does not want to be heard any longer.
    useEffect(() => () => recording.peek()?.abort(), [recording]);
    const guarded = async (work: () => Promise<void>) => {
        try {
            await work();
            input.problem.value = "";
        } catch (error) {
            if (!(error instanceof InputProblem)) throw error;
            input.problem.value = error.message;
        }
    };
    const decode = (blob: Blob, name: string) => guarded(async () => {
        source.current = { blob, name };
        input.sound.value = await readSound(blob, name, input.soundRate.value);
    });
    const toggle = () => guarded(async () => {
        if (recording.value) return recording.value.abort();
        const stop = new AbortController();
        recording.value = stop;
        try {
            const blob = await record(stop.signal);
            await decode(blob, "recording");
        } finally {
            recording.value = undefined;
        }
    });
    const sound = input.sound.value;
    return (
        <div class="pg-row">
            <label class="pg-small">
                Sound file
                <input
                    type="file" accept="audio/*,video/*"
                    onChange={(event) => {
                        const file = event.currentTarget.files?.[0];
                        if (file) void decode(file, file.name);
                    }}
                />
            </label>
            <button type="button" aria-pressed={Boolean(recording.value)} onClick={() => void toggle()}>{recording.value ? "Stop recording" : "Record"}</button>
            <label class="pg-small">
                Samples per second
                <select
                    value={input.soundRate.value}
                    onChange={(event) => {
                        input.soundRate.value = Number(event.currentTarget.value);
                        if (source.current) void decode(source.current.blob, source.current.name);
                    }}
                >
                    {RATES.map((rate) => <option key={rate} value={rate}>{rate}</option>)}
                </select>
            </label>
            {sound && <Wave samples={sound.samples} label={`${sound.name}: ${(sound.samples.length / sound.rate).toFixed(2)} s`} />}
            {sound && <p class="quiet-text"><Text>{sound.name}</Text>: {(sound.samples.length / sound.rate).toFixed(2)} s, {sound.samples.length} samples</p>}
        </div>
    );
}

const WAVE_BARS = 160;

function Wave(props: { samples: Float32Array; label: string }) {
    const { samples } = props;
    const step = Math.max(1, Math.floor(samples.length / WAVE_BARS));
    let path = "";
    for (let bar = 0; bar < WAVE_BARS; bar++) {
        let peak = 0;
        for (let at = bar * step; at < Math.min(samples.length, (bar + 1) * step); at++) peak = Math.max(peak, Math.abs(samples[at]!));
        const height = Math.max(0.5, Math.min(1, peak) * 19);
        path += `M${bar * 2 + 1} ${20 - height}V${20 + height}`;
    }
    return <svg class="pg-wave" viewBox={`0 0 ${WAVE_BARS * 2} 40`} preserveAspectRatio="none" role="img" aria-label={props.label}><path d={path} /></svg>;
}

const MAX_FILE_BYTES = 64 << 20;

export function FileEditor(props: { input: InputState }) {
    const { input } = props;
    const take = async (file: File | undefined) => {
        if (!file) return;
        if (file.size > MAX_FILE_BYTES) {
            input.problem.value = `'${file.name}' has ${Math.round(file.size / 1e6)} MB: choose at most 64 MB`;
            return;
        }
        input.file.value = { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
        input.problem.value = "";
    };
    const file = input.file.value;
    return (
        <div
            class="pg-drop" onDragOver={(event) => event.preventDefault()}
            onDrop={(event) => {
                event.preventDefault();
                void take(event.dataTransfer?.files[0]);
            }}
        >
            <label class="pg-small">
                A file, whose bytes are the element
                <input type="file" onChange={(event) => void take(event.currentTarget.files?.[0])} />
            </label>
            {file && <p class="quiet-text"><Text>{file.name}</Text>: {file.bytes.length.toLocaleString("en")} bytes</p>}
        </div>
    );
}

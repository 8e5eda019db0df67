/** Sound of a file or of the microphone as samples of one channel at the rate of a model. */

import { InputProblem } from "../tensor/elements";
import type { Sound } from "./input_state";

const MAX_BYTES = 64 << 20;
const MAX_SECONDS = 600;
const MAX_RECORDED_MS = 30_000;

/** Decode a file. Rejects with InputProblem. */
export async function readSound(file: Blob, name: string, rate: number): Promise<Sound> {
    if (file.size > MAX_BYTES) throw new InputProblem(`'${name}' has ${Math.round(file.size / 1e6)} MB: choose at most 64 MB`);
    let decoded: AudioBuffer;
    try {
        // The context of the wanted rate resamples while it decodes.
        decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    } catch {
        throw new InputProblem(`the browser cannot read '${name}' as sound at ${rate} Hz: choose a WAV, MP3, Ogg or FLAC file, and 3000 to 768000 Hz`);
    }
    if (decoded.duration > MAX_SECONDS) throw new InputProblem(`'${name}' lasts ${Math.round(decoded.duration)} s: choose at most ${MAX_SECONDS} s`);
    const samples = new Float32Array(decoded.length);
    for (let channel = 0; channel < decoded.numberOfChannels; channel++) {
        const one = decoded.getChannelData(channel);
        for (let index = 0; index < samples.length; index++) samples[index]! += one[index]! / decoded.numberOfChannels;
    }
    return { name, rate, samples };
}

/** Record until `signal` aborts, at most 30 s. Rejects with InputProblem where there is no microphone, or no leave to use it. */
export async function record(signal: AbortSignal): Promise<Blob> {
    if (!navigator.mediaDevices) throw new InputProblem("browsers give the microphone only to https pages and to localhost: choose a file");
    let stream: MediaStream;
    try {
        stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
        throw new InputProblem(`the browser gives no microphone: ${(error as Error).message}`);
    }
    try {
        const recorder = new MediaRecorder(stream);
        const parts: Blob[] = [];
        recorder.ondataavailable = (event) => parts.push(event.data);
        const ended = new Promise((resolve) => (recorder.onstop = resolve)); // Also when the microphone is unplugged.
        recorder.start();
        const stop = () => recorder.state === "recording" && recorder.stop();
        const timer = setTimeout(stop, MAX_RECORDED_MS);
        signal.addEventListener("abort", stop, { once: true });
        if (signal.aborted) stop();
        await ended;
        clearTimeout(timer);
        return new Blob(parts, { type: recorder.mimeType });
    } finally {
        for (const track of stream.getTracks()) track.stop();
    }
}

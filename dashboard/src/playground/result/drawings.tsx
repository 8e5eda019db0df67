/** Outputs drawn on a canvas: a picture, a mask or boxes over the picture that was sent. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import { toRgba } from "../picture/read_file";
import type { Pixels } from "../picture/resize";
import { tensorPixels } from "../picture/to_tensor";
import type { Numbers, Tensor } from "../tensor/datatypes";
import { BOX_FORMATS, type Box, type BoxFormat, MAX_BOXES, areNormalized, boxRows, boxesOf, guessFormat } from "./boxes";
import { maskSize, pictureOf } from "./views";

export function PictureView(props: { tensor: Tensor }) {
    const canvas = useRef<HTMLCanvasElement>(null);
    const shape = pictureOf(props.tensor);
    useEffect(() => {
        if (!shape) return;
        const { width, height, data } = tensorPixels(props.tensor, shape);
        canvas.current?.getContext("2d")?.putImageData(new ImageData(data, width, height), 0, 0);
    }, [props.tensor]);
    if (!shape) return null;
    const rows = props.tensor.values.length / (shape.width * shape.height * shape.channels);
    return (
        <figure class="pg-drawing">
            <canvas ref={canvas} width={shape.width} height={shape.height} role="img" aria-label={`${props.tensor.name} as a picture`} />
            <figcaption>{shape.width} × {shape.height}, {shape.layout}{rows > 1 && `, the first of ${rows}`}</figcaption>
        </figure>
    );
}

export function MaskView(props: { tensor: Tensor; picture: Pixels | undefined }) {
    const canvas = useRef<HTMLCanvasElement>(null);
    const opacity = useSignal(65);
    const size = maskSize(props.tensor);
    const width = props.picture?.width ?? size?.width ?? 1;
    const height = props.picture?.height ?? size?.height ?? 1;
    useEffect(() => {
        const context = canvas.current?.getContext("2d");
        if (!context || !size) return;
        const mask = new OffscreenCanvas(size.width, size.height);
        mask.getContext("2d")?.putImageData(heat(props.tensor, size), 0, 0);
        context.clearRect(0, 0, width, height);
        if (props.picture) context.putImageData(toRgba(props.picture), 0, 0);
        context.globalAlpha = props.picture ? opacity.value / 100 : 1;
        context.drawImage(mask, 0, 0, width, height);
        context.globalAlpha = 1;
    }, [props.tensor, props.picture, opacity.value]);
    return (
        <figure class="pg-drawing">
            <canvas ref={canvas} width={width} height={height} role="img" aria-label={`${props.tensor.name} as a mask`} />
            {props.picture && (
                <figcaption>
                    <label class="pg-small">Mask over the picture <input type="range" min={0} max={100} value={opacity.value} onInput={(event) => (opacity.value = Number(event.currentTarget.value))} /></label>
                </figcaption>
            )}
        </figure>
    );
}

/** Values as colors from dark blue over green to yellow; whole numbers of few kinds as distinct colors. */
function heat(tensor: Tensor, size: { width: number; height: number }): ImageData {
    const values = tensor.values as Numbers;
    let low = Infinity;
    let high = -Infinity;
    for (const each of values) {
        const value = Number(each);
        if (value < low) low = value;
        if (value > high) high = value;
    }
    const isKinds = /INT|BOOL/.test(tensor.datatype) && high - low < 256;
    const image = new ImageData(size.width, size.height);
    for (let at = 0; at < size.width * size.height; at++) {
        const value = Number(values[at]);
        const share = (value - low) / (high - low || 1);
        const color = isKinds ? kindColor(value) : heatColor(Number.isFinite(share) ? share : 0);
        image.data.set([...color, 255], at * 4);
    }
    return image;
}

const STOPS = [[38, 32, 84], [33, 104, 139], [44, 160, 125], [150, 203, 70], [250, 229, 60]] as const;

function heatColor(share: number): [number, number, number] {
    const place = share * (STOPS.length - 1);
    const index = Math.min(STOPS.length - 2, Math.floor(place));
    const from = STOPS[index]!;
    const to = STOPS[index + 1]!;
    return [0, 1, 2].map((channel) => from[channel]! + (to[channel]! - from[channel]!) * (place - index)) as [number, number, number];
}

function kindColor(value: number): [number, number, number] {
    if (value === 0) return [24, 28, 32];
    const hue = (value * 137.5) % 360;
    const part = (shift: number) => Math.round(255 * (0.55 + 0.4 * Math.cos(((hue + shift) * Math.PI) / 180)));
    return [part(0), part(-120), part(120)];
}

export function BoxesView(props: { tensor: Tensor; others: readonly Tensor[]; picture: Pixels }) {
    const { tensor, picture } = props;
    const canvas = useRef<HTMLCanvasElement>(null);
    const format = useSignal<BoxFormat>(guessFormat(tensor));
    const isNormalized = useSignal(areNormalized(tensor));
    const least = useSignal(0.3);
    const all = boxesOf(tensor, props.others, format.value, isNormalized.value, picture);
    const factor = Math.max(1, Math.round(MIN_DRAWN / Math.max(picture.width, picture.height)));
    const hasScores = all.some((box) => box.score !== undefined);
    const boxes = all.filter((box) => box.score === undefined || box.score >= least.value).slice(0, MAX_BOXES);
    useEffect(() => {
        const context = canvas.current?.getContext("2d");
        if (!context) return;
        const source = new OffscreenCanvas(picture.width, picture.height);
        source.getContext("2d")?.putImageData(toRgba(picture), 0, 0);
        context.drawImage(source, 0, 0, picture.width * factor, picture.height * factor);
        for (const box of boxes) draw(context, { ...box, points: box.points.map(([x, y]) => [x * factor, y * factor]) });
    });
    return (
        <>
            <figure class="pg-drawing">
                <canvas ref={canvas} width={picture.width * factor} height={picture.height * factor} role="img" aria-label={`${boxes.length} boxes over the picture`} />
                <figcaption>{boxes.length} of {all.length} boxes</figcaption>
            </figure>
            <div class="pg-row">
                {!boxRows(props.tensor)?.isPolygon && <label class="pg-small">
                    Numbers
                    <select value={format.value} onChange={(event) => (format.value = event.currentTarget.value as BoxFormat)}>
                        {Object.entries(BOX_FORMATS).map(([value, name]) => <option key={value} value={value}>{name}</option>)}
                    </select>
                </label>}
                <label class="pg-check"><input type="checkbox" checked={isNormalized.value} onChange={(event) => (isNormalized.value = event.currentTarget.checked)} /> 0 to 1</label>
                {hasScores && (
                    <label class="pg-small">
                        Least score {least.value.toFixed(2)}
                        <input type="range" min={0} max={1} step={0.05} value={least.value} onInput={(event) => (least.value = Number(event.currentTarget.value))} />
                    </label>
                )}
            </div>
            {boxes.some((box) => box.caption) && (
                <ol class="pg-captions">
                    {boxes.slice(0, 100).map((box, index) => (
                        <li key={index}><Text>{box.caption}</Text> {box.score !== undefined && <span class="quiet-text">{box.score.toFixed(2)}</span>}</li>
                    ))}
                </ol>
            )}
        </>
    );
}

/** A small picture is enlarged to about so many pixels, so that captions in it can be read. */
const MIN_DRAWN = 720;

function draw(context: CanvasRenderingContext2D, box: Box): void {
    const line = Math.max(1, Math.round(Math.max(context.canvas.width, context.canvas.height) / 300));
    context.beginPath();
    box.points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.lineWidth = line + 2;
    context.strokeStyle = "rgb(0 0 0 / 55%)";
    context.stroke();
    context.lineWidth = line;
    context.strokeStyle = "#ffd23e";
    context.stroke();
    const words = [box.caption.slice(0, 40), box.score?.toFixed(2)].filter(Boolean).join(" ");
    if (!words) return;
    const size = Math.max(12, Math.round(context.canvas.width / 40));
    const x = Math.min(...box.points.map((point) => point[0]));
    const y = Math.max(size + 4, Math.min(...box.points.map((point) => point[1])));
    context.font = `600 ${size}px system-ui, sans-serif`;
    context.fillStyle = "#ffd23e";
    context.fillRect(x, y - size - 4, context.measureText(words).width + 8, size + 4);
    context.fillStyle = "#1b1c1d";
    context.fillText(words, x + 4, y - 4);
}

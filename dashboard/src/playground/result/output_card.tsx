/** One output: its name, shape, and the view that was chosen. */

import { useSignal } from "@preact/signals";
import { Text } from "../../parts/blocks";
import { bytes } from "../../format";
import type { Pixels } from "../picture/resize";
import { type Tensor, tensorBytes } from "../tensor/datatypes";
import { shownShape } from "../form/input_card";
import { binaryOf } from "../wire/infer_body";
import { saveFile } from "../save_file";
import type { ClassLabels } from "../class_labels";
import { BoxesView, MaskView, PictureView } from "./drawings";
import { LabelsField } from "./labels_field";
import { ClassesView, DistributionView, LargestView, TableView, TextView } from "./values";
import { VIEW_NAMES, type ViewKind, classRows, viewsFor } from "./views";

interface OutputProps {
    tensor: Tensor;
    /** All outputs of the response: captions of boxes are in others. */
    tensors: readonly Tensor[];
    isClassified: boolean;
    picture: Pixels | undefined;
    /** Names of classes for outputs without labels. */
    labels: ClassLabels;
    /** The views that were chosen, by output, so that the next response is shown like this one. */
    chosen: Map<string, ViewKind>;
}

export function OutputCard(props: OutputProps) {
    const { tensor, chosen } = props;
    const views = viewsFor(tensor, props.isClassified, props.picture !== undefined);
    const version = useSignal(0);
    const before = chosen.get(tensor.name);
    const view = version.value >= 0 && before && views.includes(before) ? before : views[0]!;
    const choose = (kind: ViewKind) => {
        chosen.set(tensor.name, kind);
        version.value++;
    };
    return (
        <section class="pg-output" aria-label={`Output ${tensor.name}`}>
            <header>
                <h3><span class="pg-name"><Text>{tensor.name}</Text></span> <span class="pg-type">{tensor.datatype}</span> <span class="pg-type">{shownShape(tensor.shape)}</span></h3>
                <div class="pg-kinds" role="group" aria-label={`How to show ${tensor.name}`}>
                    {views.length > 1 && views.map((kind) => (
                        <button key={kind} type="button" class="small" aria-pressed={kind === view} onClick={() => choose(kind)}>{VIEW_NAMES[kind]}</button>
                    ))}
                </div>
            </header>
            <View {...props} view={view} />
            {tensor.values.length > 64 && (
                <button type="button" class="quiet small" onClick={() => saveFile(new Blob([binaryOf(tensor) as Uint8Array<ArrayBuffer>]), `${tensor.name.replaceAll(/[^\w.-]+/g, "_")}.bin`)}>
                    Save the values ({bytes(tensorBytes(tensor))})
                </button>
            )}
        </section>
    );
}

function View(props: OutputProps & { view: ViewKind }) {
    const { tensor, view, picture, labels } = props;
    switch (view) {
        case "classes": {
            const rows = classRows(tensor) ?? [];
            const isBare = rows.some((each) => each.some((row) => !row.label));
            return (
                <>
                    <ClassesView rows={rows} names={labels.names.value} />
                    {isBare && <LabelsField labels={labels} output={tensor.name} />}
                </>
            );
        }
        case "largest":
            return (
                <>
                    <LargestView tensor={tensor} names={labels.names.value} />
                    <LabelsField labels={labels} output={tensor.name} />
                </>
            );
        case "boxes":
            return picture ? <BoxesView tensor={tensor} others={props.tensors} picture={picture} /> : null;
        case "mask":
            return <MaskView tensor={tensor} picture={picture} />;
        case "picture":
            return <PictureView tensor={tensor} />;
        case "text":
            return tensor.datatype === "BYTES" ? <TextView tensor={tensor} /> : null;
        case "table":
            return <TableView tensor={tensor} />;
        case "values":
            return <DistributionView tensor={tensor} />;
    }
}

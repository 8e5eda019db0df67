/** Where a file with the names of classes is chosen. */

import type { ClassLabels } from "../class_labels";

export function LabelsField(props: { labels: ClassLabels; output: string }) {
    const { labels } = props;
    const count = labels.names.value.length;
    return (
        <div class="pg-row">
            <label class="pg-small">
                {count ? `Labels: ${count.toLocaleString("en")} of your file` : "Labels: a text file with one per line, in the order of the classes"}
                <input
                    type="file" accept=".txt,.names,.labels,text/plain" aria-label={`Labels file for ${props.output}`}
                    onChange={(event) => {
                        const file = event.currentTarget.files?.[0];
                        if (file) void labels.load(file);
                    }}
                />
            </label>
            {count > 0 && <button type="button" class="quiet small" onClick={() => labels.remove()}>Remove the labels</button>}
            {labels.problem.value && <p class="problem" role="alert">{labels.problem.value}</p>}
        </div>
    );
}

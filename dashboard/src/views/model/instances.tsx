/** The instances of the model that the stream details. */

import { Panel, Text } from "../../parts/blocks";
import { detail } from "../../state/store";

export function Instances() {
    const instances = detail.value?.instances ?? [];
    if (!instances.length) return null;
    const busy = instances.filter((each) => each.busy).length;
    return (
        <Panel title="Instances" wide note={`${busy} of ${instances.length} busy.`}>
            <ul class="instances">
                {instances.map((each) => (
                    <li key={`${each.process ?? ""} ${each.name}`} class={each.busy ? "busy" : ""}>
                        <b><Text>{each.name}</Text></b>
                        <span>{each.kind.replace("KIND_", "")}{each.device === undefined ? "" : ` ${each.device}`}{each.process === undefined ? "" : `, process ${each.process}`}</span>
                        <span class="state">{each.busy ? "busy" : "free"}</span>
                    </li>
                ))}
            </ul>
        </Panel>
    );
}

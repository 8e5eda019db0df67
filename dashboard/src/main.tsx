/** The page: the view of the address, in its frame. */

import { render } from "preact";
import { route, type View } from "./routes";
import { connect } from "./state/connection";
import { Control } from "./views/control";
import { Frame } from "./views/frame";
import { Model } from "./views/model/model";
import { Overview } from "./views/overview";
import { Pipeline } from "./views/pipeline";
import { Rollout } from "./views/rollout";
import { Traffic } from "./views/traffic";

const VIEWS: Record<View, () => preact.JSX.Element> = {
    overview: Overview,
    model: Model,
    pipeline: Pipeline,
    traffic: Traffic,
    rollout: Rollout,
    control: Control,
};

function Page() {
    const Shown = VIEWS[route.value.view];
    return (
        <Frame>
            <Shown />
        </Frame>
    );
}

connect();
const page = document.getElementById("page");
if (page) render(<Page />, page);

/** The address behind `#`: which view, which model. */

import { signal } from "@preact/signals";

export type ModelTab = "now" | "config" | "versions" | "try";
export const MODEL_TABS: readonly ModelTab[] = ["now", "config", "versions", "try"];
export type View = "overview" | "model" | "pipeline" | "traffic" | "rollout" | "control";

/** `model` is empty for views that show none in particular. */
export interface Route {
    view: View;
    model: string;
    tab: ModelTab;
}

const WITH_MODEL = ["pipeline", "rollout"] as const;
const ALONE = ["traffic", "control"] as const;

/** Read `#/models/NAME/TAB`, `#/pipeline/NAME`, `#/traffic` and the like; anything else is the overview. */
export function parseRoute(hash: string): Route {
    const [first, second, third] = hash.replace(/^#\/?/, "").split("/");
    if (first === "models" && second) {
        return { view: "model", model: decode(second), tab: MODEL_TABS.find((each) => each === third) ?? "now" };
    }
    const view = WITH_MODEL.find((each) => each === first);
    if (view) return { view, model: decode(second ?? ""), tab: "now" };
    return { view: ALONE.find((each) => each === first) ?? "overview", model: "", tab: "now" };
}

export function modelHref(model: string, tab: ModelTab = "now"): string {
    return `#/models/${encodeURIComponent(model)}${tab === "now" ? "" : `/${tab}`}`;
}

export function viewHref(view: View, model = ""): string {
    if (view === "overview") return "#/";
    return model ? `#/${view}/${encodeURIComponent(model)}` : `#/${view}`;
}

function decode(part: string): string {
    try {
        return decodeURIComponent(part);
    } catch {
        return part; // A "%" that is not an escape.
    }
}

export const route = signal<Route>(parseRoute(location.hash));
addEventListener("hashchange", () => {
    route.value = parseRoute(location.hash);
});

/** The address behind `#`: which view, which model. */

import { signal } from "@preact/signals";

export type ModelTab = "now" | "config" | "versions" | "try";
export const MODEL_TABS: readonly ModelTab[] = ["now", "config", "versions", "try"];
const VIEWS = ["pipeline", "traffic", "rollout", "control"] as const;

export type Route =
    | { view: "overview" }
    | { view: "model"; model: string; tab: ModelTab }
    | { view: (typeof VIEWS)[number] };

/** Read `#/models/NAME/TAB`, `#/traffic` and the like; anything else is the overview. */
export function parseRoute(hash: string): Route {
    const parts = hash.replace(/^#\/?/, "").split("/");
    if (parts[0] === "models" && parts[1]) {
        const tab = MODEL_TABS.find((each) => each === parts[2]) ?? "now";
        return { view: "model", model: decode(parts[1]), tab };
    }
    const view = VIEWS.find((each) => each === parts[0]);
    return view ? { view } : { view: "overview" };
}

export function modelHref(model: string, tab: ModelTab = "now"): string {
    return `#/models/${encodeURIComponent(model)}${tab === "now" ? "" : `/${tab}`}`;
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

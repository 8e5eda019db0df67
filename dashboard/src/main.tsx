/** The page: its frame, and the view of the address. */

import { render } from "preact";
import { Playground } from "./playground/playground";
import { MODEL_TABS, modelHref, route } from "./routes";
import { connect, connection } from "./state/connection";
import { models } from "./state/store";

function Page() {
    const shown = route.value;
    return (
        <main>
            <p>{connection.value.phase}</p>
            {shown.view === "model" ? (
                <>
                    <nav>{MODEL_TABS.map((tab) => <a href={modelHref(shown.model, tab)}>{tab}</a>)}</nav>
                    {shown.tab === "try" && <Playground key={shown.model} model={shown.model} />}
                </>
            ) : (
                <ul>{models.value?.map((row) => <li><a href={modelHref(row.name)}>{row.name}</a></li>)}</ul>
            )}
        </main>
    );
}

connect();
const page = document.getElementById("page");
if (page) render(<Page />, page);

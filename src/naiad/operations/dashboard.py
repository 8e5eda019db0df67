"""Operations of the dashboard: its page and files, and the live stream. The frontend carries them out."""

from naiad.operations.operation import AnyOperation, Operation, RestForm

LIVE: AnyOperation = Operation(
    name="live",
    category="statistics",
    kind="query",
    group="Server",
    summary="What the server does, as a stream of events",
    rest=[RestForm("GET", "/v2/live")],
)
DASHBOARD: AnyOperation = Operation(
    name="dashboard",
    category="metadata",
    kind="query",
    group="Server",
    summary="The dashboard, a page for browsers",
    rest=[RestForm("GET", "/")],
)
DASHBOARD_FILE: AnyOperation = Operation(
    name="dashboard_file",
    category="metadata",
    kind="query",
    group="Server",
    summary="A file of the dashboard",
    rest=[RestForm("GET", "/dashboard/{file}")],
)

PAGES = (DASHBOARD, DASHBOARD_FILE)
OPERATIONS = (LIVE, *PAGES)

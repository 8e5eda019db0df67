"""All operations, in the order in which the router looks for a path."""

import re
from collections.abc import Mapping, Sequence

from naiad.operations import dashboard, inference, mcp, models, openai, repository, settings, shared_memory
from naiad.operations.operation import AnyOperation, by_grpc_path

OPERATIONS: tuple[AnyOperation, ...] = (
    *inference.OPERATIONS,
    *models.OPERATIONS,
    *repository.OPERATIONS,
    *settings.OPERATIONS,
    *shared_memory.OPERATIONS,
    *dashboard.OPERATIONS,
    *openai.OPERATIONS,
    *mcp.OPERATIONS,
)
WITHOUT_PAGES = tuple(operation for operation in OPERATIONS if operation not in (*models.PAGES, *dashboard.PAGES))
"""The operations of a server with --http-docs=false and --allow-dashboard=false."""
BY_NAME = {operation.name: operation for operation in OPERATIONS}
BY_GRPC_PATH = by_grpc_path(OPERATIONS)


def _by_pattern() -> Mapping[str, Mapping[str, AnyOperation]]:
    found: dict[str, dict[str, AnyOperation]] = {}
    for operation in OPERATIONS:
        for form in operation.rest:
            found.setdefault(form.path.pattern, {})[form.method] = operation
    return found


_BY_PATTERN = _by_pattern()


def operations_of(path: str) -> Mapping[str, AnyOperation]:
    """Return the operations of a REST path by method; none for a path that does not exist."""
    return next((found for pattern, found in _BY_PATTERN.items() if re.fullmatch(pattern, path)), {})


def served_operations(*, docs: bool, dashboard_page: bool, tools: bool) -> Sequence[AnyOperation]:
    """Return the operations of a server with or without the API page, the dashboard, and models as tools."""
    left_out = (
        *(() if docs else models.PAGES),
        *(() if dashboard_page else dashboard.PAGES),
        *(() if tools else mcp.OPERATIONS),
    )
    return tuple(operation for operation in OPERATIONS if operation not in left_out)

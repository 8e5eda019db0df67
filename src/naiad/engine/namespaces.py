"""Resolution of model names that several models may share."""

from collections.abc import Mapping, Sequence

from naiad.core.model import IndexEntry, ModelKey
from naiad.engine.serving.served import Served
from naiad.repository.stores.namespaces import ambiguous

Rows = dict[str, dict[str, Served]]


def with_unique_names(rows: Rows, known: Mapping[str, object]) -> Rows:
    """Return the rows also by the names of only one of the `known` models; unchanged without namespaces."""
    holders: dict[str, list[ModelKey]] = {}
    for key in known:
        if isinstance(key, ModelKey):
            holders.setdefault(key.name, []).append(key)
    if not holders:
        return rows
    unique = {name: keys[0] for name, keys in holders.items() if len(keys) == 1}
    return rows | {name: rows[key] for name, key in unique.items() if key in rows}


def rows_named(index: Sequence[IndexEntry], name: str) -> Sequence[IndexEntry]:
    """Return the rows of the index for a name of a client.

    Raises InferError(INVALID_ARG) if several models have it, with Triton's text.
    """
    rows = [row for row in index if row.name == name]
    same = [row for row in index if isinstance(row.name, ModelKey) and row.name.name == name]
    holders = {row.name for row in same if row.is_wanted}
    if len(holders) > 1:
        raise ambiguous(name, len(holders))
    return rows or [row for row in same if not holders or row.name in holders]

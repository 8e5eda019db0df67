"""One repository index out of those of several processes: a version is ready where all of them have it ready."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from naiad.core.model import IndexEntry, ModelState

# Of states that differ the first one is shown.
_PRECEDENCE = (ModelState.UNAVAILABLE, None, ModelState.UNKNOWN, ModelState.UNLOADING, ModelState.LOADING)

_Rows = Mapping[tuple[str, str], IndexEntry]


def merge_index(indexes: Sequence[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """Return the rows of all processes as one index, ordered by name and version.

    Where processes disagree the row says what is wrong, and in how many of them.
    """
    tables: list[_Rows] = [{(row.name, row.version): row for row in rows} for rows in indexes]
    keys = {key for table in tables for key in table}
    with_versions = {name for name, version in keys if version}
    # A process without any version of a model has a row for the model alone, which is not one of its versions.
    shown = [(name, version) for name, version in keys if version or name not in with_versions]
    return [_merged([_row(table, *key) for table in tables]) for key in sorted(shown, key=_order)]


def _order(key: tuple[str, str]) -> tuple[str, int]:
    return key[0], int(key[1] or 0)


def _row(table: _Rows, name: str, version: str) -> IndexEntry:
    found = table.get((name, version)) or table.get((name, ""))
    return replace(found, version=version) if found is not None else IndexEntry(name, version)


def _merged(rows: Sequence[IndexEntry]) -> IndexEntry:
    first = rows[0]
    if all(row == first for row in rows):
        return first
    for state in _PRECEDENCE:
        differing = [row for row in rows if row.state is state]
        if differing:
            row = differing[0]
            where = f"in {len(differing)} of {len(rows)} processes"
            reason = f"{where}: {row.reason or 'not loaded'}" if state in (ModelState.UNAVAILABLE, None) else where
            return replace(row, state=state or ModelState.UNAVAILABLE, reason=reason)
    return first

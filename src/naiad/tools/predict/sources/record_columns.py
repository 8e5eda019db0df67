"""Objects of JSON as rows: lines of a file, messages of a queue."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.core.errors import excerpt
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import ABSENT, FileRows
from naiad.tools.predict.sources.row_source import ColumnPlan, named_columns
from naiad.tools.values.json_values import kind_of, parse_text
from naiad.tools.values.tensor import InputError

_COLONS = (b" :", b"\t:", b"\r:", b"\n:")


class RecordColumns:
    """Which members of an object are inputs and keys. Members that no input and no key needs are ignored."""

    def __init__(self, job: PredictJob, signature: RowSignature) -> None:
        self._plan = ColumnPlan(named_columns(job, signature), job.keys)
        self._features = signature.features
        is_only = len(signature.required) == 1 and bool(self._features.names) and not job.columns
        self._record_input = signature.required[0].name if is_only else ""

    def row(self, value: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return a row with its input; a record of features becomes the values of the only input.

        Raises InferError for a record that lacks a feature.
        """
        name = self._record_input
        if not name or name in value:
            return value
        return {**value, name: self._features.record(value, where)}

    def rows(self, file: str, first: int, rows: Sequence[Mapping[str, Any]], failures: dict[int, str]) -> FileRows:
        """Return consecutive rows of a file; `failures` has the reasons of those that could not be read."""
        columns = {name: [row.get(name, ABSENT) for row in rows] for name in self._plan.columns}
        found = self._plan.rows(file, first, len(rows), columns)
        found.failures = failures
        return found


def parse_record(text: bytes, where: str) -> dict[str, Any]:
    """Return an object of JSON. Raises InputError for another value, and for a name that two of its members have."""
    value = parse_text(text, where)
    if not isinstance(value, dict):
        raise InputError(
            f'expected an object with a member for each input, {{"INPUT": [1, 2]}}, got {kind_of(value)}'
        )
    # Each member has a colon behind a quote or a space. With more of them than members, one may be repeated.
    if text.count(b'":') + sum(map(text.count, _COLONS)) > len(value):
        try:
            json.loads(text, object_pairs_hook=_check_names, parse_int=len)  # only the names are looked at
        except RecursionError:
            raise InputError(f"{where}: lists or objects are nested too deep") from None
    return value


def _check_names(members: list[tuple[str, Any]]) -> None:
    """Raise InputError for a name that two members of an object have: readers of JSON keep one of them."""
    for name, count in Counter(name for name, _ in members).items():
        if count > 1:
            raise InputError(f"an object has {count} members with the name '{excerpt(name)}'; each must have its own")

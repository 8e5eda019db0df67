"""The result of a run as a JSON file, and back. Fields are named as in `naiad.tools.measure.result`; times in us.

A reader takes the version of the schema it knows. Fields that it does not know are ignored, and fields with a default
may be missing, so new fields do not need a new version.
"""

import dataclasses
import json

from naiad.files.json_records import RecordFieldError, read_record
from naiad.tools.measure.result import SCHEMA_VERSION, Result


class ResultFileError(ValueError):
    """A file is not a result that this version can read; the message names the field."""


def to_json(result: Result) -> str:
    """Return the text of the file. Raises ValueError for a number that is not finite."""
    return json.dumps(dataclasses.asdict(result), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str | bytes) -> Result:
    """Read the text of a file.

    Raises ResultFileError when it is not JSON, has another version of the schema, or a field does not fit.
    """
    try:
        document = json.loads(text, parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"not a JSON file: {error}") from error
    if not isinstance(document, dict) or "version" not in document:
        raise ResultFileError("not a result of `naiad perf --json`: it has no field 'version'")
    if document["version"] != SCHEMA_VERSION:
        raise ResultFileError(
            f"version {document['version']!r} of the result is not supported, expected {SCHEMA_VERSION}; "
            "measure again with this version of naiad"
        )
    try:
        return read_record(Result, document)
    except RecordFieldError as error:
        raise ResultFileError(str(error)) from error


def _not_finite(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")

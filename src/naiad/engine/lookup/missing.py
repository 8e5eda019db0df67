"""Errors about models and versions that are not there, with Triton's texts and a hint at what is meant."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from naiad.config.autofill import NO_VERSION
from naiad.config.problem import nearest
from naiad.config.rollout.rollout_declaration import NAMES, STABLE
from naiad.core.errors import ErrorCode, InferError, Rejection, excerpt, invalid_argument, not_found, rejected
from naiad.core.model import MISFIT, IndexEntry, ModelKey
from naiad.repository.stores.namespaces import ambiguous

_MAX_TYPO_CHARACTERS = 40
_MAX_SIMILAR_NAMES = 16
_MAX_KNOWN_NAMES = 1000
"""Together they bound the search for the nearest name to milliseconds: it runs on the event loop."""
_MAX_LISTED_VERSIONS = 8
_WITHOUT_VERSION = NO_VERSION.partition("{")[0]
"""In the reason of a model that has failed because no version of it is to be loaded."""


def still_loading(name: str) -> InferError:
    """Return the error of a model that may become ready during the start of the server."""
    return rejected(
        f"Request for unknown model: '{excerpt(name)}' is not at ready state; the server is still loading "
        "its models: send the request again when the server is ready"
    )


def unknown_name(name: str, hint: str, *, has_namespaces: bool) -> InferError:
    """Return the error of a name that no model has. Triton: another code with namespaces."""
    return InferError(
        ErrorCode.INVALID_ARG if has_namespaces else ErrorCode.NOT_FOUND,
        f"Request for unknown model: '{excerpt(name)}' is not found{hint}",
        rejection=Rejection.UNKNOWN_MODEL,
    )


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a hint at the model with the nearest name, if there is one and the search is short."""
    if len(name) > _MAX_TYPO_CHARACTERS or len(known) > _MAX_KNOWN_NAMES:
        return ""
    # A typo leaves the first or the second half intact.
    half = max(1, len(name) // 2 - 1)
    start, end = name[:half], name[-half:]
    similar = [each for each in known if each.startswith(start) or each.endswith(end)]
    if len(similar) > _MAX_SIMILAR_NAMES:
        return ""
    near = nearest(name, similar)
    return f"; did you mean '{near}'?" if near else ""


def removed_model(name: str, version: str) -> InferError:
    """Return the error of a model that was loaded and is in no repository any more."""
    opening = f"Request for unknown model: '{excerpt(name)}'"
    if version in ("", "-1"):
        return not_found(f"{opening} has no available versions", Rejection.NOT_READY)
    return not_found(f"{opening} version {excerpt(version)} is not found", Rejection.UNKNOWN_MODEL)


def missing_version(
    name: str, version: str, rows: Sequence[IndexEntry], named: Mapping[str, int], refusal: str = ""
) -> InferError:
    """Return the error of a version that is not ready.

    `rows` are the model's, `named` the names of a rollout, `refusal` says which versions were refused, if it is
    because of that.
    """
    opening = f"Request for unknown model: '{excerpt(name)}'"
    if refusal:
        return rejected(f"{opening} is not at ready state: {refusal}")
    if named and version in ("", "-1", *named):
        role = version if version in named else STABLE
        return rejected(
            f"{opening} version {named[role]}, which is '{role}' in the rollout of the model, is not at ready state"
        )
    if version in ("", "-1", *NAMES):
        if not any(row.version or _WITHOUT_VERSION in row.reason for row in rows):
            # Triton: a model whose configuration cannot be used never came to be.
            return not_found(f"{opening} is not found: its configuration could not be loaded", Rejection.NOT_READY)
        return not_found(f"{opening} has no available versions", Rejection.NOT_READY)
    if not is_version(version):
        return bad_version(version, named)
    return _missing_number(opening, version, rows)


def _missing_number(opening: str, version: str, rows: Sequence[IndexEntry]) -> InferError:
    if all(row.version != version for row in rows):
        known = sorted({row.version for row in rows if row.version}, key=int)
        return not_found(
            f"{opening} version {excerpt(version)} is not found{_known_versions(known)}", Rejection.UNKNOWN_MODEL
        )
    return rejected(f"{opening} version {excerpt(version)} is not at ready state")


def misfit(version: str, rows: Sequence[IndexEntry]) -> str:
    """Return why an ensemble that has left service refuses this version, otherwise an empty text."""
    is_misfit = any(row.reason.startswith(MISFIT) and version in ("", "-1", row.version, *NAMES) for row in rows)
    # The problems are in the index, which not every client may read.
    return f"{MISFIT}; the repository index says why" if is_misfit else ""


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


def _known_versions(versions: Sequence[str]) -> str:
    if not versions:
        return ""
    shown = ", ".join(versions[-_MAX_LISTED_VERSIONS:])
    return f"; known versions: {'..., ' if len(versions) > _MAX_LISTED_VERSIONS else ''}{shown}"


def is_version(version: str) -> bool:
    """Return whether a text is the number of a version."""
    return version.isascii() and version.isdigit()


def bad_version(version: str, names: Iterable[str] = ()) -> InferError:
    """Return the error of a text that is neither a number nor one of the `names` of the model's versions."""
    return invalid_argument(
        f"failed to get model version from specified version string '{excerpt(version)}', version should be an "
        f"integral value > 0, or a name: {', '.join(sorted({*NAMES, *names}))}"
    )

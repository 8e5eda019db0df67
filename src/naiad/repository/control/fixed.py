"""Mode NONE, in which clients neither load nor unload models, and how they are refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NoReturn

from naiad.core.errors import InferError, unavailable
from naiad.core.model import IndexEntry
from naiad.repository.catalog import Catalog
from naiad.repository.lifecycle import V


class NoControl(Generic[V]):
    """Mode NONE: everything is loaded at start, and commands are refused."""

    def __init__(self, catalog: Catalog[V]) -> None:
        self._catalog = catalog

    def load_at_start(self) -> bool:
        """Load every model; whether all of them are ready. Raises InferError when a repository cannot be read."""
        return self._catalog.load_all()

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return a row per model version, as the life cycle knows it."""
        return self._catalog.index(ready_only)

    def is_ready(self, ill: Collection[str] = ()) -> bool:
        """Tell whether the readiness rule is met, while the `ill` models are loaded and cannot execute."""
        return self._catalog.is_ready(ill)

    def survey(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the index with the models that the stores have and that were never loaded."""
        rows = list(self._catalog.index(ready_only))
        if not ready_only:
            known = {row.name for row in rows}
            rows += [IndexEntry(name) for name in self._catalog.stores.known_names() if name not in known]
            rows.sort(key=lambda row: row.name)  # stable: the versions of a model stay in order
        return rows

    def load_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        raise _not_allowed()

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        raise _not_allowed()

    def abandon(self) -> None:
        """Give up loading: what is being loaded finishes, what waits is not begun."""
        self._catalog.abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; whether every accepted request finished within `timeout_s`."""
        return self._catalog.unload_all(timeout_s)


def refuse_commands() -> NoReturn:
    """Refuse a command. Raises InferError(UNAVAILABLE)."""
    raise _not_allowed()


def _not_allowed() -> InferError:
    # Triton: the same text in mode NONE.
    return unavailable("explicit model load / unload is not allowed if polling is enabled")

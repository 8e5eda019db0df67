"""Loads one model as a server would, including warm-up, reports the result, and serves nothing."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from naiad.core.errors import InferError
from naiad.core.model import IndexEntry, ModelState
from naiad.options.options import ServerOptions
from naiad.server.app import Server

_UNLOAD_S = 10.0
"""Time for a model to unload; no request can be in flight."""


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of loading one model."""

    failures: Sequence[str]
    """Why the model does not load; empty if it does."""
    seconds: float


def try_to_load(options: ServerOptions, model: str) -> TrialOutcome:
    """Load a model of a repository in explicit mode, with its members if it is an ensemble, and unload it again.

    Raises InferError if the repository cannot be opened.
    """
    return asyncio.run(_Trial(options).load(model))


class _Trial(Server):
    """A server without ports."""

    async def load(self, model: str) -> TrialOutcome:
        """Load the model and unload everything."""
        loop = asyncio.get_running_loop()
        control = self._make_control(self._make_catalog(self._make_loader(loop, None)), loop)
        self._engine.attach(control)
        self._engine.set_started()
        start_s = time.monotonic()
        failures: Sequence[str] = ()
        try:
            await asyncio.to_thread(control.load_model, model, {})
        except InferError as error:
            failures = _reasons(control.index(), model) or (error.message.strip(),)
        seconds = time.monotonic() - start_s
        await asyncio.to_thread(control.unload_all, _UNLOAD_S)
        return TrialOutcome(failures, seconds)


def _reasons(rows: Sequence[IndexEntry], model: str) -> Sequence[str]:
    """Return why versions of a model are not ready, except those unloaded because another one failed."""
    return [
        f"version {row.version}: {row.reason.strip()}"
        for row in rows
        if row.name == model and row.state is not ModelState.READY and row.is_wanted and row.reason
    ]

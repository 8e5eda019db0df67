"""What the model says of its own readiness: its method `is_ready`, if it has one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

from naiad.backend.worker.board import Board
from naiad.backend.worker.logger import Logger

INTERVAL_S = 1.0
"""Between two questions. Triton asks when somebody asks the server; here nobody waits for the answer."""


class Readiness:
    """Asks the model in a thread of its own, and writes on the board what it says."""

    def __init__(self, model: Any, board: Board) -> None:
        self._model = model
        self._board = board
        self._over = threading.Event()
        self._was_ready = True

    def start(self) -> None:
        """Ask from now on; until the first answer has come the model is not ready. Nothing without `is_ready`."""
        if callable(getattr(self._model, "is_ready", None)):
            self._board.say_ready(False)
            threading.Thread(target=self._run, name="naiad is_ready", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self.ask()
            self._over.wait(INTERVAL_S)

    def ask(self) -> None:
        """Ask once. The log has a line when the model was ready before and is not."""
        self._board.begin_question()
        complaint = self._complaint()
        self._board.say_ready(not complaint)
        if complaint and self._was_ready:
            Logger.log_warn(f"the model is not ready: {complaint}")
        self._was_ready = not complaint

    def _complaint(self) -> str:
        """Return why the model is not ready; empty when it is."""
        try:
            answer = self._model.is_ready()
            if inspect.iscoroutine(answer):
                answer = asyncio.run(answer)
        except Exception as error:
            return f"is_ready has raised {type(error).__name__}: {error}"
        if not isinstance(answer, bool):
            return f"is_ready must return a bool, not {type(answer).__name__}"
        return "" if answer else "is_ready says so"

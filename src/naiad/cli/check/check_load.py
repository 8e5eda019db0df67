"""`naiad check --load`: load models as a server would, each in its own process, and report failures."""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from naiad.config.problem import Problem
from naiad.repository.model_check import ModelReport
from naiad.repository.open_repository import open_repository
from naiad.tools.process.child import ChildProcess


@dataclass(frozen=True, slots=True)
class LoadRules:
    """How to load models."""

    strict: bool = False
    timeout_s: float = 600.0
    job_count: int = 1
    """Number of models that load at the same time."""
    backend_directory: str = ""
    """Directory of Python-based backends; empty for none."""
    allow_pickle: bool = False
    """Whether to load pickles, which executes their code."""


def load_reported(path: str, reports: Sequence[ModelReport], rules: LoadRules) -> dict[str, float]:
    """Load the models without known problems, and add failures to their reports.

    Returns the seconds of each successful load, by name. Raises InferError if the repository cannot be read.
    """
    names = open_repository(path).list_models()
    is_one_model = len(reports) == len(names) == 1 and not (Path(path) / names[0]).is_dir()
    wanted = [report for report in reports if report.is_ok and (is_one_model or report.name in names)]
    loads = _Loads(path, rules)
    outcomes = loads.load([names[0] if is_one_model else report.name for report in wanted])
    seconds = {}
    for report, (failures, took_s) in zip(wanted, outcomes, strict=True):
        where = path if is_one_model else f"{path.rstrip('/')}/{report.name}"
        report.problems += [Problem(message=f"the model does not load: {each}", filename=where) for each in failures]
        if not failures:
            seconds[report.name] = took_s
    return seconds


_Outcome = tuple[Sequence[str], float]
"""The reasons of a failed load, and its seconds."""


class _Loads:
    """Loads the models of a repository in processes."""

    def __init__(self, path: str, rules: LoadRules) -> None:
        self._path = path
        self._rules = rules
        self._running: set[ChildProcess] = set()
        self._is_over = False

    def load(self, names: Sequence[str]) -> list[_Outcome]:
        """Return the result of each load."""
        with ThreadPoolExecutor(self._rules.job_count, thread_name_prefix="load-one") as pool:
            try:
                return list(pool.map(self._load, names))
            except BaseException:
                # An interrupt ends running loads, and no further one starts.
                self._is_over = True
                for process in list(self._running):
                    process.kill()
                raise

    def _load(self, name: str) -> _Outcome:
        if self._is_over:
            return ["it was not tried"], 0.0
        with tempfile.TemporaryDirectory(prefix="naiad-check-") as home:
            outcome = Path(home) / "outcome"
            rules = self._rules
            strict = "strict" if rules.strict else "complete"
            pickles = "pickles" if rules.allow_pickle else "no-pickles"
            failure = self._run([self._path, name, strict, pickles, str(outcome), rules.backend_directory])
            if outcome.is_file():
                found = orjson.loads(outcome.read_bytes())
                return found["failures"], found["seconds"]
            return [failure or self._late()], 0.0 if failure else rules.timeout_s

    def _late(self) -> str:
        return f"it was not ready after {self._rules.timeout_s:g} s"

    def _run(self, arguments: Sequence[str]) -> str:
        """Run the process to its end, and return how it has ended; "" if it took too long."""
        process = ChildProcess([sys.executable, "-m", "naiad.cli.check.load_one", *arguments])
        self._running.add(process)
        if self._is_over:  # the interrupt came before this process was known
            process.kill()
        try:
            return "" if process.wait(self._rules.timeout_s) is None else process.ending
        finally:
            self._running.discard(process)
            process.close()

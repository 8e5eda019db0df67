"""The operator that measures a model under load, and fails the task when it is slower than a baseline."""

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.client import InferError
from naiad.integrations.airflow.connection import ServerEndpoint
from naiad.integrations.airflow.operators.base import NaiadOperator
from naiad.tools.measure.comparison import compare
from naiad.tools.measure.result import Result
from naiad.tools.measure.result_json import ResultFileError, from_json, to_json
from naiad.tools.perf.perf_plan import Concurrency, InputSettings, Measuring, ModelLoad, Plan, Protocol, ServerTarget
from naiad.tools.perf.perf_session import run
from naiad.tools.perf.report.perf_text import comparison_text, row_text


class NaiadPerfOperator(NaiadOperator):
    """Measures a model with `naiad perf`, and compares it with a baseline, the `result` of an earlier task.

    The task fails if throughput or latency is worse by more than `fail_over_percent` and the difference is no chance,
    or if requests fail. With `create_baseline` the first measurement becomes the baseline. `input_data` are paths in
    the formats of `naiad perf`, `random` or `zero`. Returns requests/s and mean latency in us.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "model", "version", "input_data", "baseline", "result")

    def __init__(  # noqa: PLR0913 - keyword-only, as in a DAG
        self,
        *,
        model: str,
        version: str = "",
        concurrency: int = 4,
        batch_size: int = 1,
        input_data: Sequence[str] = ("random",),
        percentile: int | None = None,
        repeat: int = 3,
        seconds: float = 10.0,
        baseline: str = "",
        create_baseline: bool = False,
        fail_over_percent: float = 5.0,
        result: str = "",
        **settings: Any,
    ) -> None:
        """`seconds` is the most that one of the `repeat` measurements takes; `percentile` is judged, or the mean."""
        super().__init__(**settings)
        self.model = model
        self.version = version
        self.concurrency = concurrency
        self.batch_size = batch_size
        self.input_data = input_data
        self.percentile = percentile
        self.repeat = repeat
        self.seconds = seconds
        self.baseline = baseline
        self.create_baseline = create_baseline
        self.fail_over_percent = fail_over_percent
        self.result = result

    def execute(self, context: Any) -> dict[str, float]:
        """Measure the model. Raises AirflowException, AirflowFailException for files and settings that are wrong."""
        self._check()
        baseline = self._read_baseline()
        measured = self._measure()
        for path in self._outputs(has_baseline=baseline is not None):
            path.write_text(to_json(measured))
            self.log.info("result: %s", path)
        if baseline is not None:
            self._compare(baseline, measured)
        return {
            "requests_per_s": statistics.fmean(row.throughput.value for row in measured.rows),
            "latency_us": statistics.fmean(row.latency.mean.value for row in measured.rows),
        }

    def _check(self) -> None:
        for name, value in (
            ("concurrency", self.concurrency),
            ("batch_size", self.batch_size),
            ("repeat", self.repeat),
        ):
            if value < 1:
                raise AirflowFailException(f"{name} is {value}; expected a whole number from 1")
        for name, number in (("seconds", self.seconds), ("fail_over_percent", self.fail_over_percent)):
            if not number > 0:
                raise AirflowFailException(f"{name} is {number}; expected a number above 0")
        for name, text in (("result", self.result), ("baseline", self.baseline if self.create_baseline else "")):
            if text and not Path(text).absolute().parent.is_dir():
                raise AirflowFailException(f"{name} is {text}, whose directory does not exist; create it")

    def _read_baseline(self) -> Result | None:
        if not self.baseline or (self.create_baseline and not Path(self.baseline).exists()):
            return None
        try:
            return from_json(Path(self.baseline).read_bytes())
        except (OSError, ResultFileError) as error:
            raise AirflowFailException(
                f"baseline {self.baseline} cannot be used: {error}; it is the `result` of an earlier task, or the "
                "file of naiad perf --json"
            ) from error

    def _outputs(self, *, has_baseline: bool) -> list[Path]:
        paths = [self.result, "" if has_baseline or not self.create_baseline else self.baseline]
        return [Path(path) for path in dict.fromkeys(paths) if path]

    def _measure(self) -> Result:
        hook = self.hook
        plan = self._plan(hook.endpoint)
        try:
            measured = asyncio.run(run(plan, command=["NaiadPerfOperator", self.model]))
        except InferError as error:
            raise hook.failure(error) from error
        except ValueError as error:  # of input data
            raise AirflowFailException(f"model '{self.model}' cannot be measured: {error}") from error
        for row in measured.rows:
            self.log.info("%s", row_text(row, self.percentile))
        failures = [each for row in measured.rows for each in row.errors]
        if measured.exit_reason or failures or not measured.rows:
            reason = measured.exit_reason or (
                f"{failures[0].count} requests failed: {failures[0].message}" if failures else "nothing was measured"
            )
            raise AirflowException(f"connection '{self.conn_id}': model '{self.model}' was not measured: {reason}")
        return measured

    def _plan(self, endpoint: ServerEndpoint) -> Plan:
        service = ServerTarget(
            endpoint.url,
            Protocol.GRPC if endpoint.url.startswith("grpc") else Protocol.HTTP,
            headers=endpoint.headers,
            ca_file=endpoint.ca_file,
            certificate_file=endpoint.certificate_file,
            key_file=endpoint.key_file,
            request_timeout_s=endpoint.timeout_s,
        )
        inputs = InputSettings(tuple(self.input_data))
        measuring = Measuring(window_ms=max(1, round(self.seconds * 100)), max_trials=10, percentile=self.percentile)
        model = ModelLoad(self.model, str(self.version), self.batch_size, inputs)
        return Plan(service, [model], Concurrency(self.concurrency), measuring, repeat=self.repeat)

    def _compare(self, baseline: Result, measured: Result) -> None:
        try:
            comparison = compare(baseline, measured, self.fail_over_percent)
        except ValueError as error:
            raise AirflowFailException(f"baseline {self.baseline} does not fit: {error}") from error
        text = comparison_text(comparison)
        self.log.info("%s", text)
        if comparison.is_worse_past_limit:
            raise AirflowException(f"model '{self.model}' is slower than the baseline {self.baseline}:{text}")

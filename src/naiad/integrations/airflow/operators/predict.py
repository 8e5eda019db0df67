"""The operator that predicts the rows of files with a model of the server."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.client import ErrorCode, InferError
from naiad.integrations.airflow.operators.base import NaiadOperator
from naiad.tools.predict import JobProgress, PredictJob, predict

_LOG_INTERVAL_S = 15.0
_MISTAKES = (ErrorCode.INVALID_ARG, ErrorCode.UNSUPPORTED)
"""A retry does not correct them."""


class NaiadPredictOperator(NaiadOperator):
    """Predicts all rows of files, and writes one file, as `naiad predict` does.

    `inputs` are files, glob patterns and folders; `columns` maps columns of the files to inputs of the model. The
    output appears when all rows are done. A task that was interrupted continues where it stopped when Airflow starts
    it again. Returns rows, failed rows, the paths of the output and of the rejected rows, and
    with `since` whether there was nothing new.
    """

    template_fields: ClassVar[Sequence[str]] = (
        "conn_id",
        "model",
        "version",
        "inputs",
        "output_path",
        "columns",
        "since",
        "state",
    )

    def __init__(  # noqa: PLR0913 - keyword-only, as in a DAG
        self,
        *,
        model: str,
        inputs: Sequence[str] | str,
        output_path: str,
        version: str = "",
        columns: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        keys: Sequence[str] = (),
        rows_per_request: int = 0,
        concurrency: int = 0,
        max_failed_rows: int | None = None,
        restart: bool = False,
        since: str = "",
        state: str = "",
        timeout_s: float = 600.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.model = model
        self.inputs = inputs
        self.output_path = output_path
        self.version = version
        self.columns = columns
        self.outputs = outputs
        self.keys = keys
        self.rows_per_request = rows_per_request
        self.concurrency = concurrency
        self.max_failed_rows = max_failed_rows
        self.restart = restart
        self.since = since
        self.state = state
        self.timeout_s = timeout_s

    def execute(self, context: Any) -> dict[str, Any]:
        """Predict the rows. Raises AirflowException, AirflowFailException for a job that cannot succeed."""
        hook = self.hook
        if hook.endpoint.tls() is not None:
            raise AirflowFailException(
                f"connection '{self.conn_id}' has ca_file or certificate_file in extra, which batch prediction does "
                "not use; set the environment variable SSL_CERT_FILE of the worker, and use a connection without them"
            )
        try:
            summary = predict(self._job(hook.endpoint.url, hook.endpoint.headers), _Log(self.log))
        except InferError as error:
            failure = hook.failure(error)
            raise AirflowFailException(str(failure)) if error.code in _MISTAKES else failure from error
        except OSError as error:
            raise AirflowException(f"model '{self.model}' was not asked: {error}") from error
        earlier = summary.earlier
        if earlier is not None:
            self.log.info("an earlier run did not end; its output is complete now: %s", earlier.output)
            if earlier.failed_rows:
                self.log.warning("%d of its rows failed; their reasons: %s", earlier.failed_rows, earlier.rejected)
        if summary.is_nothing_new:
            self.log.info("nothing to do: %d files are not new", summary.skipped_files)
        if summary.failed_rows:
            self.log.warning("%d rows failed; their reasons are in %s", summary.failed_rows, summary.rejected)
        self.log.info("%d rows in %.1f s: %s", summary.rows, summary.seconds, summary.output)
        return {
            "rows": summary.rows,
            "failed_rows": summary.failed_rows,
            "output": summary.output,
            "rejected": summary.rejected,
            "is_nothing_new": summary.is_nothing_new,
            "earlier_output": earlier.output if earlier is not None else "",
        }

    def _job(self, url: str, headers: Mapping[str, str]) -> PredictJob:
        return PredictJob(
            url,
            self.model,
            [self.inputs] if isinstance(self.inputs, str) else list(self.inputs),
            self.output_path,
            version=str(self.version),
            columns=self.columns or {},
            outputs=self.outputs,
            rows_per_request=self.rows_per_request,
            concurrency=self.concurrency,
            max_failed_rows=self.max_failed_rows,
            restart=self.restart,
            since=self.since,
            state=self.state,
            timeout_s=self.timeout_s,
            keys=self.keys,
            headers=headers,
        )


class _Log:
    """Writes the progress to the task's log now and then."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._shown_s = time.monotonic()

    def __call__(self, progress: JobProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= _LOG_INTERVAL_S:
            self._shown_s = now_s
            self._log.info(
                "%s: %.0f %%, %d rows, %.0f rows/s, %d failed",
                progress.phase,
                100 * progress.fraction,
                progress.rows,
                progress.rows_per_s,
                progress.failed_rows,
            )

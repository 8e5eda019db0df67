"""Run a batch prediction."""

from collections.abc import Callable

from naiad.batch.job import PredictJob, Progress, Summary
from naiad.core.errors import unsupported


def predict(job: PredictJob, on_progress: Callable[[Progress], None] | None = None) -> Summary:
    """Run a job, or continue it where an interrupted run with the same files has stopped.

    `on_progress` is called from this thread, a few times a second. Raises InferError for a job, a model or a file
    that is wrong, and for too many failed rows, and OSError for a file that cannot be read or written.
    """
    job.check()
    raise unsupported("the reader is being written")

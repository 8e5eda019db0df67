"""Batch prediction: a model over the rows of files, in this process or on a server."""

from naiad.tools.predict.job import JobProgress, PredictJob, Summary
from naiad.tools.predict.run import predict

__all__ = ["JobProgress", "PredictJob", "Summary", "predict"]

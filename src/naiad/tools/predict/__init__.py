"""Batch prediction: a model over the rows of files, in this process or on a server."""

from naiad.tools.predict.job import PredictJob, Progress, Summary
from naiad.tools.predict.run import predict

__all__ = ["PredictJob", "Progress", "Summary", "predict"]

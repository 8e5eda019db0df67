"""Batch prediction: a model over the rows of files, in this process or on a server."""

from naiad.tools.predict.model_mapper import ModelMapper
from naiad.tools.predict.prediction import predict
from naiad.tools.predict.prediction_job import JobProgress, PredictJob, Summary

__all__ = ["JobProgress", "ModelMapper", "PredictJob", "Summary", "predict"]

"""Forests to treelite, from XGBoost, LightGBM and scikit-learn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob


def convert(job: ConversionJob) -> Mapping[str, str]:
    """Write checkpoint.tl, and return the parameters of the backend.

    Raises an exception of treelite for an estimator that is no forest.
    """
    import treelite

    if job.source_format == "xgboost":
        import xgboost

        booster = xgboost.Booster(model_file=job.source)
        attributes = booster.attributes()
        if "scikit_learn" in attributes and "best_iteration" in attributes:
            # The backend predicts with these rounds too.
            booster = booster[: int(attributes["best_iteration"]) + 1]
        model = treelite.frontend.from_xgboost(booster)
    elif job.source_format == "lightgbm":
        model = treelite.frontend.load_lightgbm_model(job.source)
    else:
        model = treelite.sklearn.import_model(load_estimator(job))
    model.serialize(str(Path(job.output, "checkpoint.tl")))
    # `predict_proba` of scikit-learn has two columns for two classes, a forest without the parameter one.
    has_columns = len(job.outputs) == 1 and job.outputs[0].shape[-1] > 1
    return {"predict_proba": "true"} if job.source_format == "sklearn" and has_columns else {}


def load_estimator(job: ConversionJob) -> Any:
    """Return the estimator of a skops file, or of a joblib or pickle file, whose author must be trusted."""
    if job.source.endswith(".skops"):
        import skops.io

        return skops.io.load(job.source, trusted=skops.io.get_untrusted_types(file=job.source))
    import joblib

    return joblib.load(job.source)

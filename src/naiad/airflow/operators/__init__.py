"""The operators of the Airflow provider."""

from naiad.airflow.operators.models import NaiadLoadModelOperator, NaiadUnloadModelOperator
from naiad.airflow.operators.perf import NaiadPerfOperator
from naiad.airflow.operators.predict import NaiadPredictOperator
from naiad.airflow.operators.publish import NaiadPublishModelOperator
from naiad.airflow.operators.rollout import NaiadRolloutOperator

__all__ = [
    "NaiadLoadModelOperator",
    "NaiadPerfOperator",
    "NaiadPredictOperator",
    "NaiadPublishModelOperator",
    "NaiadRolloutOperator",
    "NaiadUnloadModelOperator",
]

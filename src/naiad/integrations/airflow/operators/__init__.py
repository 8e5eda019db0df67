"""The operators of the Airflow provider."""

from naiad.integrations.airflow.operators.models import NaiadLoadModelOperator, NaiadUnloadModelOperator
from naiad.integrations.airflow.operators.perf import NaiadPerfOperator
from naiad.integrations.airflow.operators.predict import NaiadPredictOperator
from naiad.integrations.airflow.operators.publish import NaiadPublishModelOperator
from naiad.integrations.airflow.operators.rollout import NaiadRolloutOperator

__all__ = [
    "NaiadLoadModelOperator",
    "NaiadPerfOperator",
    "NaiadPredictOperator",
    "NaiadPublishModelOperator",
    "NaiadRolloutOperator",
    "NaiadUnloadModelOperator",
]

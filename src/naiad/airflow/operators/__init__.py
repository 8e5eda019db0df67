"""The operators of the Airflow provider."""

from naiad.airflow.operators.models import NaiadLoadModelOperator, NaiadUnloadModelOperator
from naiad.airflow.operators.perf import NaiadPerfOperator
from naiad.airflow.operators.publish import NaiadPublishModelOperator

__all__ = ["NaiadLoadModelOperator", "NaiadPerfOperator", "NaiadPublishModelOperator", "NaiadUnloadModelOperator"]

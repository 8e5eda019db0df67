"""The Airflow provider: a hook, operators and a sensor that make a server of naiad a step of a pipeline."""

from typing import Any

CONNECTION_TYPE = "naiad"


def get_provider_info() -> dict[str, Any]:
    """Return the description of the provider. Airflow calls it through the entry point `apache_airflow_provider`."""
    return {
        "package-name": "naiad",
        "name": "naiad",
        "description": "Publish, roll out, ask and measure models of an inference server compatible with Triton.",
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "naiad.integrations.airflow.hooks.NaiadHook",
                "hook-name": "naiad",
            }
        ],
        "integrations": [{"integration-name": "naiad", "tags": ["service"]}],
        "hooks": [{"integration-name": "naiad", "python-modules": ["naiad.integrations.airflow.hooks"]}],
        "operators": [{"integration-name": "naiad", "python-modules": ["naiad.integrations.airflow.operators"]}],
        "sensors": [{"integration-name": "naiad", "python-modules": ["naiad.integrations.airflow.sensors"]}],
        "triggers": [{"integration-name": "naiad", "python-modules": ["naiad.integrations.airflow.triggers"]}],
    }

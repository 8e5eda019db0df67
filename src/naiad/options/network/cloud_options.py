"""Options of the cloud endpoints: Amazon SageMaker, Google Vertex AI and Azure Machine Learning."""

import re
from dataclasses import dataclass

from naiad.options.flag import ValueKind, option

UNSPECIFIED_MODEL = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""Triton: the model of /invocations if no variable names one; the error of the unknown model then has the fix."""
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")


@dataclass(frozen=True, slots=True)
class SageMakerOptions:
    """The SageMaker endpoint."""

    allow: bool = option(
        False, "allow-sagemaker", "Serve the container contract of SageMaker: /ping, /invocations, /models."
    )
    address: str = option("0.0.0.0", "sagemaker-address", "naiad: address for SageMaker.", kind=ValueKind.ADDRESS)
    port: int = option(8080, "sagemaker-port", "Port for SageMaker; 0 for any.", minimum=0, maximum=65535)
    safe_port_range: str = option(
        "", "sagemaker-safe-port-range", "<first>-<last>: the ports that the other endpoints may have."
    )
    default_model: str = option(
        UNSPECIFIED_MODEL,
        "sagemaker-default-model",
        "naiad: model of /invocations.",
        default_text="$SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        variable="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
    )
    ping_mode: str = option(
        "ready",
        "sagemaker-ping-mode",
        "naiad: meaning of /ping. Default: $SAGEMAKER_TRITON_PING_MODE, or ready.",
        choices=("ready", "live"),
        variable="SAGEMAKER_TRITON_PING_MODE",
    )
    inference_type: str = option(
        "infer",
        "sagemaker-inference-type",
        "naiad: protocol of /invocations. Default: $SAGEMAKER_TRITON_INFERENCE_TYPE, or infer.",
        choices=("infer", "generate", "generate_stream"),
        variable="SAGEMAKER_TRITON_INFERENCE_TYPE",
    )
    base_directory: str = option(
        "/opt/ml",
        "sagemaker-base-directory",
        "naiad: directory of SageMaker's model and models. Default: $SAGEMAKER_BASE_DIR, or /opt/ml.",
        variable="SAGEMAKER_BASE_DIR",
    )

    @property
    def safe_ports(self) -> range:
        """The ports that other endpoints may have. Raises ValueError for an invalid flag."""
        if not self.safe_port_range:
            return range(65536)
        found = _RANGE.fullmatch(self.safe_port_range)
        if found is None:
            raise ValueError("is not a range of ports; write one such as 8081-9000")
        return range(int(found[1]), int(found[2]) + 1)


@dataclass(frozen=True, slots=True)
class VertexAiOptions:
    """The Vertex AI endpoint."""

    allow: bool = option(
        False,
        "allow-vertex-ai",
        "Serve the container contract of Vertex AI. Default: true if $AIP_MODE is PREDICTION, which also turns HTTP "
        "and gRPC off.",
    )
    address: str = option("0.0.0.0", "vertex-ai-address", "naiad: address for Vertex AI.", kind=ValueKind.ADDRESS)
    port: int = option(
        8080,
        "vertex-ai-port",
        "Port for Vertex AI; 0 for any. Default: $AIP_HTTP_PORT, or 8080.",
        minimum=0,
        maximum=65535,
        variable="AIP_HTTP_PORT",
    )
    default_model: str = option(
        "", "vertex-ai-default-model", "Model of the predict route.", default_text="the only model"
    )
    predict_route: str = option(
        "",
        "vertex-ai-predict-route",
        "naiad: path of predictions.",
        default_text="$AIP_PREDICT_ROUTE",
        variable="AIP_PREDICT_ROUTE",
    )
    health_route: str = option(
        "",
        "vertex-ai-health-route",
        "naiad: path of health checks.",
        default_text="$AIP_HEALTH_ROUTE",
        variable="AIP_HEALTH_ROUTE",
    )

    @property
    def problem(self) -> str:
        """Which route is missing; empty if none."""
        for variable, flag, value in (
            ("AIP_PREDICT_ROUTE", "--vertex-ai-predict-route", self.predict_route),
            ("AIP_HEALTH_ROUTE", "--vertex-ai-health-route", self.health_route),
        ):
            if self.allow and not value.startswith("/"):
                state = f"'{value}' is not a path" if value else "is not defined"
                return f"{variable} {state} for Vertex AI endpoint; set it or {flag} to a path such as /predict"
        return ""


@dataclass(frozen=True, slots=True)
class AzureMlOptions:
    """The Azure Machine Learning endpoint."""

    allow: bool = option(
        False,
        "allow-azure-ml",
        "naiad: serve Azure ML: scoring at /score, liveness at /, readiness at /ready, and the HTTP endpoint.",
    )
    address: str = option("0.0.0.0", "azure-ml-address", "naiad: address for Azure ML.", kind=ValueKind.ADDRESS)
    port: int = option(5001, "azure-ml-port", "naiad: port for Azure ML; 0 for any.", minimum=0, maximum=65535)
    default_model: str = option(
        "", "azure-ml-default-model", "naiad: model of /score.", default_text="the only model"
    )

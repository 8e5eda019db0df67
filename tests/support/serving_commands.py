"""Command lines that serving systems start a Triton server with, as their sources have them."""

KSERVE = (
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)
"""KServe 0.20: config/runtimes/kserve-tritonserver.yaml."""
SELDON_1 = (
    "/opt/tritonserver/bin/tritonserver",
    "--grpc-port=9500",
    "--http-port=9000",
    "--model-repository=/mnt/models",
    "--strict-model-config=false",
)
"""Seldon Core 1: TRITON_SERVER of the prepackaged servers."""
SELDON_2 = (
    "tritonserver",
    "--model-repository=/mnt/agent/models",
    "--http-port=9000",
    "--grpc-port=9500",
    "--log-verbose=1",
    "--model-control-mode=explicit",
    "--backend-config=python,shm-default-byte-size=16777216",
)
"""Seldon Core 2: the ServerConfig triton, which runs it as `bash -c`; its variables are replaced."""

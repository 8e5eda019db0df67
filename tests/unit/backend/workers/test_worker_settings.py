"""The settings of workers, and the environment that they start in."""

import pytest

from naiad.backend.workers.worker_settings import read_settings, worker_environment
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support.backend_parts import make_context


def context(parameters=None, backend_config=None, **fields):
    config = ModelConfig(name="m", **fields)
    for name, value in (parameters or {}).items():
        config.parameters[name].string_value = value
    return make_context(config, backend_config=backend_config, usable_cores=8)


def test_settings_have_defaults_and_can_be_set():
    assert read_settings(context()).execute_timeout_s == 0
    assert read_settings(context()).stacks_after_s == 0
    assert read_settings(context({"stacks_after_s": "1.5"})).stacks_after_s == 1.5
    settings = read_settings(
        context(
            {"execute_timeout_s": "0.5", "restart_limit": "2", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"},
            {
                "stub-timeout-seconds": "5",
                "transport-max-byte-size": "1000",
                "shm-default-byte-size": "7",
                "shm-growth-byte-size": "7",
                "shm-region-prefix-name": "x",
                "thread-pool-size": "3",
            },
        )
    )
    assert (settings.execute_timeout_s, settings.restart_limit) == (0.5, 2)
    assert (settings.start_timeout_s, settings.transport_bytes) == (5, 1000)


@pytest.mark.parametrize(
    ("parameters", "backend_config", "said"),
    [
        ({"execute_timeout_s": "soon"}, {}, "parameter 'execute_timeout_s' is 'soon'; use a number"),
        ({"execute_timeout_s": "-1"}, {}, "parameter 'execute_timeout_s' is '-1'"),
        ({"execute_timeout_s": "nan"}, {}, "parameter 'execute_timeout_s' is 'nan'"),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"}, {}, "use 'yes' or 'no'"),
        ({"tensor_parallel_size": "two"}, {}, "'tensor_parallel_size' is 'two'; use a number of ranks from 1 to 64"),
        ({"torch_distributed": "mpi"}, {}, "'torch_distributed' is 'mpi'; use 'gloo' or 'nccl'"),
        ({"EXECUTION_ENV_PATH": "x.tar.gz"}, {}, "'EXECUTION_ENV_PATH' is 'x.tar.gz': .*x.tar.gz does not exist"),
        ({}, {"stub-timeout-seconds": "x"}, "--backend-config=python,stub-timeout-seconds=x"),
        ({}, {"transport-max-bytes": "1"}, "--backend-config=python,transport-max-bytes is not known"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(parameters, backend_config, said):
    with pytest.raises(InferError, match=said) as caught:
        read_settings(context(parameters, backend_config))
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_threads_times_workers_do_not_exceed_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    group = {"instance_group": [{"count": 3}]}
    assert worker_environment(context(**group))["OMP_NUM_THREADS"] == "2"
    assert worker_environment(context())["MKL_NUM_THREADS"] == "8"
    assert worker_environment(context({"tensor_parallel_size": "4"}))["MKL_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    environment = worker_environment(context(**group))
    assert environment["OMP_NUM_THREADS"] == "5"
    assert "MKL_NUM_THREADS" not in environment


@pytest.mark.parametrize("is_charged", [True, False])
def test_quota_disables_busy_polling_in_workers(monkeypatch, is_charged):
    monkeypatch.setattr("naiad.backend.workers.worker_settings.is_charged_for_waiting", lambda: is_charged)
    assert ("NAIAD_WORKER_NEVER_AWAKE" in worker_environment(context())) == is_charged

"""Configurations of bound models, and options of their server."""

from pathlib import Path

import numpy as np
import pytest

from naiad.bind.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonValidationError,
)
from naiad.bind.model_config import (
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    QueuePolicy,
    Tensor,
    TimeoutAction,
    WarmupInput,
)
from naiad.bind.model_config.generator import from_message, to_message
from naiad.bind.model_store import ModelStore, complete_config
from naiad.bind.triton_config import PREFIX, TritonConfig, TritonSecurityConfig, server_options
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.tensors.features import read_features
from naiad.options.flags import all_flags

FLOATS = [Tensor(shape=(-1,), dtype=np.float32)]


def complete(name="m", version=1, config=None, inputs=FLOATS, outputs=FLOATS, count=1):
    return complete_config(name, version, inputs, outputs, config or ModelConfig(), count)


def test_tensors_without_names_are_numbered():
    config = complete(inputs=[*FLOATS, Tensor(shape=(1,), dtype=bytes)])
    assert [spec.name for spec in config.inputs] == ["INPUT_1", "INPUT_2"]
    assert [spec.name for spec in config.outputs] == ["OUTPUT_1"]


def test_every_option_of_batcher_reaches_message():
    batcher = DynamicBatcher(
        max_queue_delay_microseconds=100,
        preferred_batch_size=[2, 4],
        preserve_ordering=True,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 10, True, 5),
        priority_queue_policy={1: QueuePolicy(max_queue_size=7)},
    )
    config = complete(
        config=ModelConfig(max_batch_size=8, batcher=batcher, decoupled=True, response_cache=True), count=3
    )
    message = to_message(config)
    assert message.dynamic_batching.priority_queue_policy[1].max_queue_size == 7
    assert message.instance_group[0].count == 3
    assert from_message(message).batcher == batcher
    assert from_message(message).decoupled
    assert from_message(message).response_cache.enable


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.float32, "TYPE_FP32"), (np.dtype("int64"), "TYPE_INT64"), (bytes, "TYPE_STRING"), (object, "TYPE_STRING")],
)
def test_numpy_types_become_datatypes(dtype, name):
    message = to_message(complete(inputs=[Tensor(shape=(1,), dtype=dtype)]))
    assert f"data_type: {name}" in str(message)


@pytest.mark.parametrize("dtype", [np.str_, np.complex64, "text", np.datetime64])
def test_types_outside_protocol_are_refused(dtype):
    with pytest.raises(PyTritonBadParameterError, match="input 'INPUT_1' has dtype"):
        to_message(complete(inputs=[Tensor(shape=(1,), dtype=dtype)]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(max_batch_size=0), "max_batch_size is 0"),
        (ModelConfig(batcher=DynamicBatcher(default_priority_level=1)), "default_priority_level is 1"),
        (ModelConfig(batcher=DynamicBatcher(priority_queue_policy={1: QueuePolicy()})), "priority 1"),
        (ModelConfig(model_warmup=[ModelWarmup("w", 1, {"INPUT_1": WarmupInput(np.float32, (1,))}, 1)]), "no data"),
    ],
)
def test_invalid_configurations_name_the_field(config, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        to_message(complete(config=config))


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_invalid_model_names_are_refused(name):
    with pytest.raises(PyTritonValidationError, match="model name"):
        complete(name)


def test_optional_outputs_are_refused():
    with pytest.raises(PyTritonValidationError, match="outputs cannot be optional: OUTPUT_1"):
        complete(outputs=[Tensor(shape=(1,), dtype=np.float32, optional=True)])


def test_store_writes_configuration_that_parses(tmp_path: Path):
    ModelStore(tmp_path).add(complete("m", 3))
    parsed = parse_pbtxt((tmp_path / "model-store" / "m" / "config.pbtxt").read_text())
    assert not parsed.problems
    assert parsed.config.backend == "naiad_bind"
    assert (tmp_path / "model-store" / "m" / "3").is_dir()


def test_store_refuses_same_version_twice(tmp_path: Path):
    store = ModelStore(tmp_path)
    store.add(complete())
    with pytest.raises(PyTritonInvalidOperationError, match="version 1 is bound already"):
        store.add(complete())


def test_versions_of_a_model_share_configuration(tmp_path: Path):
    store = ModelStore(tmp_path)
    store.add(complete())
    store.add(complete(version=2))
    with pytest.raises(PyTritonModelConfigError, match="different configurations"):
        store.add(complete(version=3, config=ModelConfig(max_batch_size=9)))


def test_store_refuses_what_server_would_refuse(tmp_path: Path):
    config = ModelConfig(max_batch_size=2, batcher=DynamicBatcher(preferred_batch_size=[3]))
    with pytest.raises(PyTritonModelConfigError, match="preferred"):
        ModelStore(tmp_path).add(complete(config=config))
    assert not list((tmp_path / "model-store").iterdir())


def test_temporary_workspace_is_removed():
    store = ModelStore()
    store.add(complete())
    store.close()
    assert not store.path.parent.exists()


def test_warm_up_file_becomes_raw_data(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 4]], np.float64))
    warmup = ModelWarmup(
        "w", 2, {"INPUT_1": WarmupInput(np.float32, (2,), input_data_file=str(tmp_path / "x.npy"))}, 1
    )
    ModelStore(tmp_path / "work").add(complete(config=ModelConfig(model_warmup=[warmup])))
    (written,) = (tmp_path / "work" / "model-store" / "m" / "warmup").iterdir()
    assert np.frombuffer(written.read_bytes(), np.float32).tolist() == [1, 2]


# --- options of the server ------------------------------------------------------------------------------------------


def test_every_field_is_a_flag():
    known = {flag.name.replace("-", "_") for flag in all_flags()}
    fields = set(TritonConfig().to_dict()) - {"flags"}
    assert fields <= known, f"no flags: {sorted(fields - known)}"


def test_arguments_win_over_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(f"{PREFIX}HTTP_PORT", "1111")
    monkeypatch.setenv(f"{PREFIX}GRPC_PORT", "2222")
    options = server_options(TritonConfig(http_port=3333), None, tmp_path)
    assert (options.http.port, options.grpc.port) == (3333, 2222)
    assert options.repository.paths == (str(tmp_path),)


def test_lists_of_environment_are_numbered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(f"{PREFIX}CACHE_CONFIG_0", "local,size=1000000")
    monkeypatch.setenv(f"{PREFIX}ALLOW_METRICS", "false")
    config = TritonConfig.from_env()
    assert config.cache_config == ["local,size=1000000"]
    assert config.allow_metrics is False


def test_unknown_variable_names_nearest_field(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(f"{PREFIX}HTTP_PROT", "1")
    with pytest.raises(PyTritonBadParameterError, match=r"HTTP_PROT.*did you mean 'http_port'"):
        TritonConfig.from_env()


def test_wrong_value_names_flag(tmp_path: Path):
    with pytest.raises(PyTritonBadParameterError, match="--grpc-infer-response-compression-level"):
        server_options(TritonConfig(grpc_infer_response_compression_level="much"), None, tmp_path)


def test_further_flags_are_passed(tmp_path: Path):
    options = server_options(TritonConfig(flags=["--drain-seconds=3"]), None, tmp_path)
    assert options.drain_s == 3


def test_repository_is_served_beside_bound_models(tmp_path: Path):
    options = server_options(TritonConfig(model_repository=tmp_path / "more"), None, tmp_path / "bound")
    assert options.repository.paths == (str(tmp_path / "bound"), str(tmp_path / "more"))


def test_nothing_to_serve_is_refused():
    with pytest.raises(PyTritonValidationError, match="nothing would be served"):
        TritonConfig(allow_http=False, allow_grpc=False)


def test_security_config_restricts_both_protocols(tmp_path: Path):
    security = TritonSecurityConfig(access_token="secret")
    options = server_options(None, security, tmp_path)
    assert options.access.http_restricted["model-repository"].value == "secret"
    assert "inference" not in options.access.grpc_restricted
    assert "secret" not in repr(security)


def test_security_config_makes_random_token():
    assert TritonSecurityConfig().access_token != TritonSecurityConfig().access_token
    assert TritonSecurityConfig(restricted_endpoints=[]).access_token is None
    with pytest.raises(PyTritonValidationError, match="Invalid endpoint names: wrong"):
        TritonSecurityConfig(restricted_endpoints=["wrong"])


def test_names_of_columns_reach_records():
    config = complete(config=ModelConfig(feature_names=["age", "größe"]))
    assert read_features(to_message(config)).names == ("age", "größe")
    with pytest.raises(PyTritonValidationError, match="this one has 2"):
        complete(inputs=[*FLOATS, *FLOATS], config=ModelConfig(feature_names=["age"]))

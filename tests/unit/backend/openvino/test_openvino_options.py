"""How parameters become a device and properties of OpenVINO; needs no OpenVINO."""

import pytest

from naiad.backend.openvino.compile_options import plan_compilation
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context


def _plan(count=1, max_batch_size=8, **texts):
    config = ModelConfig(name="m", max_batch_size=max_batch_size)
    config.instance_group.add(count=count)
    for name, text in texts.items():
        config.parameters[name].string_value = text
    return plan_compilation(make_context(config, usable_cores=4))


def test_defaults_are_precise_and_bounded():
    plan = _plan(count=2)
    assert plan.device == "CPU"
    assert plan.properties == {
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "INFERENCE_NUM_THREADS": "4",
        "NUM_STREAMS": "2",
    }


def test_streams_never_exceed_threads():
    assert _plan(count=9).properties["NUM_STREAMS"] == "4"


def test_performance_hint_leaves_streams_open():
    properties = _plan(PERFORMANCE_HINT="throughput").properties
    assert properties["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert "NUM_STREAMS" not in properties


def test_bf16_replaces_full_precision():
    properties = _plan(HINT_BF16="yes").properties
    assert properties["INFERENCE_PRECISION_HINT"] == "bf16"
    assert "EXECUTION_MODE_HINT" not in properties


def test_properties_override_what_parameters_say():
    properties = _plan(NUM_STREAMS="numa", **{"property.NUM_STREAMS": "3"}).properties
    assert properties["NUM_STREAMS"] == "3"


def test_other_devices_choose_their_threads():
    plan = _plan(TARGET_DEVICE="GPU", COMPILATION_NUM_THREADS="2")
    assert (plan.device, plan.properties) == ("GPU", {"COMPILATION_NUM_THREADS": "2"})


def test_relative_cache_is_in_the_model_directory(tmp_path):
    config = ModelConfig(name="m")
    config.parameters["CACHE_DIR"].string_value = "cache"
    plan = plan_compilation(make_context(config, model_dir=tmp_path))
    assert plan.properties["CACHE_DIR"] == str(tmp_path / "cache")


def test_rows_are_fixed_only_with_batching():
    assert _plan(SKIP_OV_DYNAMIC_BATCHSIZE="YES").has_fixed_rows
    assert not _plan(max_batch_size=0, SKIP_OV_DYNAMIC_BATCHSIZE="YES").has_fixed_rows


@pytest.mark.parametrize("streams", ["0", "many", "-1", "4097"])
def test_wrong_stream_counts_are_refused(streams):
    with pytest.raises(InferError, match="expected AUTO, NUMA or a number of streams from 1 to 4096"):
        _plan(NUM_STREAMS=streams)

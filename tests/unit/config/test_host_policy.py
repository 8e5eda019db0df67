"""Host policies in flags, and the policy of an instance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.config.model_config_pb2 import ModelInstanceGroup
from naiad.options.host_policy import HostPolicy, format_cores, parse_cores, policy_name
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options


def parse(*values: str) -> ServerOptions:
    return parse_options(["--model-repository=/m", *(f"--host-policy={value}" for value in values)])


def test_settings_are_gathered_by_policy():
    options = parse("gpu_0,numa-node=0", "gpu_0,cpu-cores=0-15", "cpu,cpu-cores=3,16-17,1")
    assert options.host_policies == {
        "gpu_0": HostPolicy(frozenset(range(16)), 0),
        "cpu": HostPolicy(frozenset({1, 3, 16, 17})),
    }
    assert not options.no_effect
    assert str(options.host_policies["gpu_0"]) == "numa-node=0,cpu-cores=0-15"


def test_the_last_of_equal_settings_counts():
    assert parse("cpu,cpu-cores=0", "cpu,cpu-cores=2").host_policies == {"cpu": HostPolicy(frozenset({2}))}


def test_none_is_the_default():
    assert parse().host_policies == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("cpu-cores=0-3", ["'cpu-cores=0-3' names no policy", "<name>,cpu-cores=", "gpu_0"]),
        ("cpu,cores=0-3", ["'cpu,cores=0-3'", "no setting 'cores'", "cpu-cores", "numa-node"]),
        ("cpu,cpu-cores=", ["'cpu,cpu-cores='", "'' is neither a core nor a range"]),
        ("cpu,cpu-cores=0-", ["'0-' is neither a core nor a range"]),
        ("cpu,cpu-cores=0-1-2", ["'0-1-2' is neither a core nor a range"]),
        ("cpu,cpu-cores=0, 1", ["' 1' is neither a core nor a range"]),
        ("cpu,cpu-cores=-1", ["'-1' is neither a core nor a range"]),
        ("cpu,cpu-cores=3-1", ["'3-1' ends before it begins"]),
        ("cpu,cpu-cores=0-99999999", ["core 99999999 is above the maximum of any kernel"]),
        ("cpu,cpu-cores=0-99999999999999999999", ["is neither a core nor a range"]),
        ("cpu,numa-node=all", ["'all' is not the number of a NUMA node"]),
        ("cpu", ["--host-policy", "has no setting"]),
    ],
)
def test_errors_name_flag_value_and_fix(value, words):
    with pytest.raises(OptionError) as caught:
        parse(value)
    assert str(caught.value).startswith("--host-policy: ")
    for word in words:
        assert word in str(caught.value)


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_cores_are_read_as_they_are_written(cores):
    assert parse_cores(format_cores(cores)) == cores


def test_peers_are_written_as_ranges():
    assert format_cores([8, 1, 0, 2]) == "0-2,8"


@pytest.mark.parametrize(
    ("group", "device", "name"),
    [
        ({"kind": "KIND_CPU"}, 0, "cpu"),
        ({"kind": "KIND_GPU", "gpus": [0, 3]}, 3, "gpu_3"),
        ({"kind": "KIND_MODEL"}, 0, "model"),
        ({"kind": "KIND_GPU", "gpus": [1], "host_policy": "near"}, 1, "near"),
    ],
)
def test_groups_without_policy_use_their_kind(group, device, name):
    """Triton: `cpu`, `gpu_N` and `model` are the default names."""
    assert policy_name(ModelInstanceGroup(**group), device) == name

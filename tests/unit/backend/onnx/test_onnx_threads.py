"""The thread plan: all instances of a model together compute on no more threads than there are cores."""

import pytest

from naiad.backend.onnx.session_options import ThreadPlan, plan_threads
from naiad.core.errors import InferError


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("instances", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("mode", ["0", "1"])
def test_without_parameters_the_cores_are_not_exceeded(cores, instances, mode):
    plan = plan_threads({"execution_mode": mode}, cores, instances)
    # Every instance has a thread of its own, which computes at least when it calls.
    assert plan.computing <= (cores if mode == "1" else max(cores, instances))
    assert plan.intra_op >= 1
    assert plan.inter_op >= 1


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_all_cores_are_used(cores):
    for instances in range(1, cores + 1):
        assert plan_threads({}, cores, instances).computing == cores
    assert plan_threads({"execution_mode": "1"}, cores, 1).computing == cores


def test_instances_share_all_cores():
    assert plan_threads({}, 2, 1).intra_op == 2
    assert plan_threads({}, 2, 2).intra_op == 1
    assert plan_threads({}, 16, 4).intra_op == 13


def test_parameters_per_instance_may_exceed_cores():
    assert plan_threads({"intra_op_thread_count": "4"}, 2, 1) == ThreadPlan(4, 1, False, 1)
    plan = plan_threads({"intra_op_thread_count": "4"}, 2, 3)
    assert plan.computing == 12
    assert plan_threads({"intra_op_thread_count": "1"}, 8, 3).computing == 3
    assert plan_threads({"intra_op_thread_count": "0"}, 8, 1) == plan_threads({}, 8, 1)
    plan = plan_threads({"execution_mode": "1", "inter_op_thread_count": "3", "intra_op_thread_count": "2"}, 8, 1)
    assert plan == ThreadPlan(2, 3, True, 1)


def test_the_plan_can_be_read():
    assert str(plan_threads({}, 4, 1)) == "1 instance uses a session of 4 intra-op threads: at most 4 compute at once"
    assert str(plan_threads({"execution_mode": "1"}, 4, 2)) == (
        "2 instances share a session of 3 intra-op, 2 inter-op threads: at most 4 compute at once"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intra_op_thread_count", "two"),
        ("intra_op_thread_count", "-1"),
        ("inter_op_thread_count", "1.5"),
        ("inter_op_thread_count", "99999"),
        ("execution_mode", "2"),
    ],
)
def test_parameters_that_make_no_sense_are_named(name, value):
    with pytest.raises(InferError, match=f"parameter '{name}' is '{value}', expected"):
        plan_threads({name: value}, 2, 1)

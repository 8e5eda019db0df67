"""The budget of a load: each kind of demand is refused with its field, number, limit and flag."""

import pytest
from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.loading.budget import LoadBudget
from naiad.options.load_limits import LoadLimitOptions

LIMITS = LoadLimitOptions().resolved(memory_bytes=16 << 30, cores=2)
BUDGET = LoadBudget(LIMITS)
STATE = 'sequence_batching { state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: [ %s ] } }'
SAMPLE = (
    'model_warmup { name: "w" batch_size: %d count: %d '
    'inputs { key: "I" value { data_type: TYPE_FP32 dims: [ %s ] zero_data: true } } }'
)


def parameter(key: str, value: object) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def excess(text: str, **options) -> str:
    config = text_format.Parse(text, ModelConfig(name="m"))
    error = BUDGET.excess(config, **options)
    return "" if error is None else error.message


def histogram(count: int) -> str:
    bounds = ", ".join(map(str, range(count)))
    return f"model_metrics {{ metric_control {{ histogram_options {{ buckets: [ {bounds} ] }} }} }}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("instance_group { count: 2000 }", "instance_group[0].count asks for 2000 instances, the limit is 128"),
        ("instance_group { count: 1000000 }", "--max-load-instances=1000000"),
        ("instance_group { count: 2147483647 } instance_group { count: 2147483647 }", "4294967294 instances"),
        ("instance_group { count: 1 } instance_group { count: 128 }", "instance_group[1].count asks for 129"),
        ("instance_group { } " * 129, "instance_group[0].count asks for 129 instances, the limit is 128"),
        ("instance_group { count: -5 gpus: [ 0, 1, 2 ] } " * 50, "asks for 150 instances"),
        ("instance_group { count: 50 gpus: [ 0, 1, 2 ] }", "asks for 150 instances"),
        (SAMPLE % (1, 1, "1000000000"), """model_warmup[0].inputs["I"].dims asks for 4000000064 bytes"""),
        (SAMPLE % (4294967295, 1, "1"), "bytes, the limit is 2147483648"),
        (SAMPLE % (4294967295, 1, "1"), "--max-load-bytes="),
        ('model_warmup { name: "w" batch_size: 4294967295 }', "model_warmup[0].batch_size asks for"),
        (SAMPLE % (1, 4294967295, "1"), "model_warmup asks for 4294967295 warm-up executions, the limit is 100000"),
        (STATE % "1000000000", "sequence_batching.state[0].dims asks for 4000000000 bytes"),
        (STATE % "-1, 70000, 70000", "sequence_batching.state[0].dims asks for 19600000000 bytes"),
        ("max_batch_size: 2147483647 sequence_batching { direct { } }",
         "max_batch_size asks for 2147483647 sequences, the limit is 65536"),
        ("max_batch_size: 1024 instance_group { count: 100 } sequence_batching { }", "102400 sequences"),
        ("sequence_batching { oldest { max_candidate_sequences: 2147483647 } }",
         "sequence_batching.oldest.max_candidate_sequences asks for 2147483647 sequences"),
        (histogram(40000), "model_metrics.metric_control asks for 40000 histogram buckets, the limit is 256"),
        ("ensemble_scheduling { " + 'step { model_name: "a" } ' * 2000 + "}",
         "ensemble_scheduling.step asks for 2000 steps, the limit is 256"),
        (parameter("intra_op_thread_count", 4096), """parameters["intra_op_thread_count"] asks for 4096 threads"""),
        ("instance_group { count: 100 } " + parameter("NUM_THREADS", 10), "asks for 1000 threads"),
        ('max_batch_size: 2000000000 input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] } '
         + parameter("pad_batch", "1,2000000000"), """parameters["pad_batch"] asks for 16000000000 bytes"""),
        ('input { name: "I" data_type: TYPE_INT8 dims: [ -1 ] } ' + parameter("pad_input.I", "buckets=16,2147483647"),
         ""),
        ('max_batch_size: 2 input { name: "I" data_type: TYPE_INT32 dims: [ -1 ] } '
         + parameter("pad_input.I", "buckets=16,2147483647"), "asks for 8589934588 bytes"),
        ('max_batch_size: 2000000000 input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] } '
         + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"), "max_batch_size (input[0]) asks for 16000000000 bytes"),
    ],
)  # fmt: skip
def test_demands_beyond_a_limit_are_refused(text: str, words: str) -> None:
    message = excess(text)
    assert words in message
    assert bool(message) == bool(words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "instance_group { count: 128 }",
        "instance_group { count: -1 }",
        SAMPLE % (8, 1000, "3, 224, 224"),
        SAMPLE % (0, 4294967295, "1000000000"),
        STATE % "4096, 4096",
        "max_batch_size: 2147483647",
        "max_batch_size: 256 sequence_batching { direct { } }",
        "dynamic_batching { default_queue_policy { max_queue_size: 4294967295 } priority_levels: 4294967295000 }",
        histogram(200),
        parameter("intra_op_thread_count", 64),
        parameter("intra_op_thread_count", "many"),
    ],
)  # fmt: skip
def test_usual_demands_are_within_the_budget(text: str) -> None:
    assert excess(text) == ""


def test_processes_and_versions_are_counted() -> None:
    text = "instance_group { count: 30 }"
    assert excess(text, has_processes=True) == ""
    assert "instance_group[0].count asks for 60 worker processes, the limit is 32" in excess(
        text, version_count=2, has_processes=True
    )
    assert "150 instances" in excess(text, version_count=5)
    ranks = text + parameter("tensor_parallel_size", 4)
    assert "120 worker processes" in excess(ranks, has_processes=True)


def test_error_names_every_field() -> None:
    message = excess("instance_group { count: 2000 }" + STATE % "1000000000" + parameter("NUM_THREADS", 4000))
    assert message.startswith("model 'm': instance_group[0].count")
    assert all(flag in message for flag in ("--max-load-instances", "--max-load-threads", "--max-load-bytes"))


def test_flags_change_the_limits() -> None:
    config = text_format.Parse("instance_group { count: 2000 }", ModelConfig(name="m"))
    assert LoadBudget(LoadLimitOptions(max_instances=2000).resolved(memory_bytes=1, cores=1)).excess(config) is None
    error = LoadBudget(LoadLimitOptions(max_instances=1999).resolved(memory_bytes=1, cores=1)).excess(config)
    assert error is not None
    assert "the limit is 1999" in error.message


@pytest.mark.parametrize(
    ("memory", "cores", "expected"),
    [
        (1 << 30, 1, (256 << 20, 128, 8, 512)),
        (8 << 30, 2, (1 << 30, 128, 32, 512)),
        (1 << 40, 64, (2 << 30, 1024, 1024, 2048)),
    ],
)
def test_limits_follow_from_the_machine(memory: int, cores: int, expected: tuple[int, ...]) -> None:
    limits = LoadLimitOptions().resolved(memory_bytes=memory, cores=cores)
    assert (limits.max_bytes, limits.max_instances, limits.max_processes, limits.max_threads) == expected

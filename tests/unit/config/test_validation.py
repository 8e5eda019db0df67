"""Each error of Triton, with its words from a real server, and warnings about settings without effect."""

import pytest

from naiad.config.autofill import autofill, normalize
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem
from naiad.config.validate.ensemble import ensemble_member_problems, find_ensemble_cycle, has_decoupled_member
from naiad.config.validate.model import validate

MODEL = """
backend: "python"
input { name: "I" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 4 ] }
"""
BATCHING = MODEL + "max_batch_size: 4\n"
ENSEMBLE = """
platform: "ensemble"
input { name: "I" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def parse(text: str) -> ParsedConfig:
    parsed = parse_pbtxt(text)
    assert [str(problem) for problem in parsed.problems] == []
    return parsed


def problems_of(text: str, **options) -> list[Problem]:
    parsed = parse(text)
    config = normalize(autofill(parsed.config, model_name="m", version_files=["model.py"]), default_cpu_instances=1)
    options = {"known_backends": ["onnxruntime", "python"], "gpu_count": 0, **options}
    return validate(config, model_name="m", parsed=parsed, **options)


def tensor(rest: str, kind: str = "input") -> str:
    other = "output" if kind == "input" else "input"
    return f'backend: "python" {kind} {{ {rest} }} {other} {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}'


def dynamic(rest: str) -> str:
    return BATCHING + f"dynamic_batching {{ {rest} }}"


def sequence(rest: str) -> str:
    return BATCHING + f"sequence_batching {{ {rest} }}"


def control(*controls: str) -> str:
    return sequence('control_input { name: "S" ' + " ".join(f"control {{ {one} }}" for one in controls) + " }")


def state(rest: str) -> str:
    return sequence(f'state {{ input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [ 4 ] {rest} }}')


def step(inputs: str = 'key: "I" value: "I"', outputs: str = 'key: "O" value: "O"', model: str = "m1") -> str:
    return f'step {{ model_name: "{model}" model_version: -1 input_map {{ {inputs} }} output_map {{ {outputs} }} }}'


def ensemble(*steps: str, rest: str = "") -> str:
    return ENSEMBLE + f"ensemble_scheduling {{ {' '.join(steps)} }} {rest}"


START = "kind: CONTROL_SEQUENCE_START"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
DIMENSION = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m"
VALUES = "'int32_false_true', 'fp32_false_true'"

REFUSED = [
    (
        'name: "other"' + MODEL,
        "unexpected directory name 'm' for model 'other', directory name must equal model name",
    ),
    ('platform: "foo"', "unexpected platform type 'foo' for m"),
    (
        'backend: "onnxruntime" platform: "tensorrt_plan"',
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    (
        'backend: "pyton"',
        "unable to find backend library for backend 'pyton', try specifying runtime on the model configuration.",
    ),
    (MODEL + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    (MODEL + "version_policy { latest { num_versions: 0 } }", "at least one version must be available"),
    (MODEL + "version_policy { specific { } }", "at least one version must be available"),
    (MODEL + 'default_model_filename: "../x.py"', "model file '../x.py' must stay within the version directory."),
    (dynamic("preferred_batch_size: [ 0 ]"), "dynamic batching preferred size must be positive for m"),
    (dynamic("preferred_batch_size: [ 2, 9 ]"), "dynamic batching preferred size must be <= max batch size for m"),
    (dynamic("preferred_batch_size: [ 5 ]"), "dynamic batching preferred size must be <= max batch size for m"),
    (dynamic("priority_levels: 2"), "default priority level must be in range [1, 2] for m"),
    (
        dynamic("priority_levels: 2 default_priority_level: 3"),
        "default priority level must be in range [1, 2] for m",
    ),
    (
        dynamic("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 value { } }"),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        dynamic("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        dynamic(
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        dynamic(
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (tensor("data_type: TYPE_FP32 dims: 4"), "model input must specify 'name' for m"),
    (tensor('name: "I" dims: 4'), "model input 'I' must specify 'data_type' for m"),
    (tensor('name: "I" data_type: TYPE_FP32'), "model input 'I' must specify 'dims' for m"),
    (tensor('name: "I" data_type: TYPE_FP32 dims: 0'), f"model input 'I' {DIMENSION}"),
    (tensor('name: "I" data_type: TYPE_FP32 dims: [ 3, -2 ]'), f"model input 'I' {DIMENSION}"),
    (tensor("data_type: TYPE_FP32 dims: 4", "output"), "model output must specify 'name' for m"),
    (tensor('name: "O" dims: 4', "output"), "model output 'O' must specify 'data_type' for m"),
    (tensor('name: "O" data_type: TYPE_FP32', "output"), "model output 'O' must specify 'dims' for m"),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 3 ] }'),
        "model input 'I' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 3 ] }'),
        "model input 'I' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 8 ] }'),
        "model input 'I' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, -1 ] }'),
        "model input 'I' has different number of variable-size dimensions for dims and reshape for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 0 ] }'),
        "model input 'I' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 1 reshape { }'),
        "model input 'I' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
    ),
    (
        tensor('name: "O" data_type: TYPE_FP32 dims: 4 reshape { shape: 5 }', "output"),
        "model output 'O' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 format: FORMAT_NHWC'),
        "model input NHWC/NCHW require 3 dims for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 is_shape_tensor: true'),
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true'),
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
    (
        tensor('name: "O" data_type: TYPE_FP32 dims: 4 label_filename: "../l.txt"', "output"),
        "label file '../l.txt' must stay within model directory.",
    ),
    (MODEL + 'input { name: "I" data_type: TYPE_FP32 dims: 4 }', "model input 'I' is specified more than once for m"),
    (
        MODEL + 'output { name: "O" data_type: TYPE_FP32 dims: 4 }',
        "model output 'O' is specified more than once for m",
    ),
    (
        BATCHING + 'batch_input { target_name: "T" data_type: TYPE_FP16 source_input: "I" }',
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        BATCHING + 'batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "J" }',
        "unknown source input name 'J' for m",
    ),
    (
        BATCHING + 'batch_input { target_name: "T" data_type: TYPE_INT32 }',
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m",
    ),
    (
        BATCHING + 'batch_input { data_type: TYPE_INT32 source_input: "I" }',
        "batch input must specify 'target_name' for m",
    ),
    (
        BATCHING + 'batch_input { target_name: "I" data_type: TYPE_INT32 source_input: "I" }',
        "batch input target 'I' can only be specified once for m",
    ),
    (
        MODEL + 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_INT32 source_input: "I" }',
        "batch input kind 'BATCH_ITEM_SHAPE' describes the shapes of a batch's rows, but the model does not batch"
        " for m",
    ),
    (
        tensor('name: "I" data_type: TYPE_FP32 dims: 4 optional: true')
        + ' batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "I" }',
        "batch input kind 'BATCH_ELEMENT_COUNT' has the source input 'I', which requests may omit for m",
    ),
    (BATCHING + 'batch_output { source_input: "I" }', "batch output must specify 'target_name' for m"),
    (
        BATCHING + 'batch_output { target_name: [ "O", "O" ] source_input: "I" }',
        "target output name 'O' can only be specified once",
    ),
    (
        tensor('name: "O" data_type: TYPE_FP32 dims: [ 4, -1 ]', "output")
        + ' batch_output { target_name: "O" source_input: "X" }',
        "batch output 'O' has a variable dimension for which source input 'X' has none for m",
    ),
    (BATCHING + 'batch_output { target_name: "Q" source_input: "I" }', "unknown target output name 'Q' for m"),
    (BATCHING + 'batch_output { target_name: "O" source_input: "Q" }', "unknown source input name 'Q' for m"),
    (
        BATCHING + 'batch_output { target_name: "O" }',
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
    ),
    (
        MODEL + "instance_group { kind: KIND_GPU }",
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
    ),
    (
        MODEL + "instance_group { kind: KIND_CPU gpus: 0 }",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        sequence(f"control_input {{ control {{ {START} int32_false_true: [ 0, 1 ] }} }}"),
        "sequence batching control tensor must have a name for m",
    ),
    (
        control(START),
        f"sequence batching must specify either {VALUES} or 'bool_false_true' for CONTROL_SEQUENCE_START for m",
    ),
    (
        control(f"{START} int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
        f"sequence batching specifies more than one from {VALUES} and 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for m",
    ),
    (
        control(f"{START} int32_false_true: [ 0 ]"),
        "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
    ),
    (
        control(f"{START} bool_false_true: [ true, false, true ]"),
        "sequence batching control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
    ),
    (
        control(f"{START} int32_false_true: [ 0, 1 ]", f"{START} int32_false_true: [ 0, 1 ]"),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        sequence(f'control_input {{ name: "S" control {{ {START} int32_false_true: [ 0, 1 ] }} }}' * 2),
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    (
        sequence('state { input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [ 4 ] }' * 2),
        "sequence state input 'SI' can only be specified once for m",
    ),
    (
        sequence('state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 4 ] }').replace(
            "state {", f'control_input {{ name: "S" control {{ {START} int32_false_true: [ 0, 1 ] }} }} state {{'
        ),
        "sequence state input 'S' can only be specified once for m",
    ),
    (
        control(f"{CORRID} data_type: TYPE_FP32"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        control(f"{CORRID} data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]"),
        f"sequence batching must not specify either {VALUES} or 'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        sequence("oldest { max_candidate_sequences: 4 preferred_batch_size: 5 }"),
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    (
        sequence("oldest { max_candidate_sequences: 4 preferred_batch_size: 0 }"),
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        sequence("direct { minimum_slot_utilization: 2 }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (
        sequence("direct { minimum_slot_utilization: nan }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (sequence('state { input_name: "A" data_type: TYPE_FP32 dims: 1 }'), "must specify 'output_name' for m"),
    (sequence('state { input_name: "A" output_name: "B" dims: 1 }'), "must specify 'data_type' for m"),
    (
        state("initial_state { data_type: TYPE_FP32 dims: 4 zero_data: true }"),
        "Field 'name' must be set when using initial_state for state input 'SI'.",
    ),
    (
        state('initial_state { name: "i" data_type: TYPE_INT8 dims: 4 zero_data: true }'),
        "The data type used for 'initial_state' field of state 'SI' does not match the state data type.",
    ),
    (
        state('initial_state { name: "i" data_type: TYPE_FP32 dims: [ 4, 1 ] zero_data: true }'),
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'SI'.",
    ),
    (
        state('initial_state { name: "i" data_type: TYPE_FP32 dims: -1 zero_data: true }'),
        "'initial_state' field for state input name 'SI' contains variable dimensions.",
    ),
    (
        state('initial_state { name: "i" data_type: TYPE_FP32 dims: 5 zero_data: true }'),
        "'initial_state' dim for input name 'SI' doesn't match 'state' dim description.",
    ),
    (state('initial_state { name: "i" data_type: TYPE_FP32 dims: 4 }'), "initial_state setting expects state'SI'"),
    (
        sequence("") + "response_cache { enable: true }",
        "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
        "response cache.",
    ),
    (
        MODEL + 'response_cache { enable: true } parameters { key: "response_cache_max_bytes" '
        'value { string_value: "1 MB" } }',
        "parameter 'response_cache_max_bytes' is not a number of bytes",
    ),
    (
        MODEL + 'response_cache { enable: true } parameters { key: "response_cache_max_bytes" '
        'value { string_value: "0" } }',
        "parameter 'response_cache_max_bytes' is not a number of bytes",
    ),
    (
        MODEL + "response_cache { enable: true } model_transaction_policy { decoupled: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the "
        "response cache.",
    ),
    (
        MODEL + 'model_warmup { name: "w" batch_size: 2 }',
        "warmup sample 'w' has batch size 2, which the model does not accept for m",
    ),
    (
        MODEL
        + 'model_warmup { name: "w" inputs { key: "J" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }',
        "warmup sample 'w' has data for 'J', which is not an input for m",
    ),
    (
        MODEL + 'model_warmup { name: "w" inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 } } }',
        "warmup input 'I' must specify its data for m",
    ),
    (
        MODEL
        + 'model_warmup { name: "w" inputs { key: "I" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }',
        "warmup input 'I' must have fixed dims for m",
    ),
    (
        MODEL + 'model_metrics { metric_control { metric_identifier { family: "f" } '
        "histogram_options { buckets: [ 3, 1 ] } } }",
        "Bucket Boundaries must be strictly sorted for m",
    ),
    (
        MODEL + 'model_metrics { metric_control { metric_identifier { family: "f" } '
        "histogram_options { buckets: [ 1, nan ] } } }",
        "Bucket Boundaries must be finite for m",
    ),
    (MODEL + 'metric_tags { key: "my-team" }', "metric_tags key 'my-team' is not a name of a Prometheus label for m"),
    (MODEL + 'metric_tags { key: "a\\nfake 1" }', r"metric_tags key 'a\nfake 1' is not a name of a Prometheus label"),
    (MODEL + 'metric_tags { key: "1st" }', "metric_tags key '1st' is not a name of a Prometheus label"),
    (MODEL + 'metric_tags { key: "" value: "x" }', "metric_tags key '' is not a name of a Prometheus label"),
    (MODEL + 'metric_tags { key: "_name__" }', "metric_tags key '_name__' would become the label '__name__'"),
    (ENSEMBLE, "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
    (ensemble(), "must specify 'step' for ensemble 'm'"),
    (
        ensemble(step()).replace('platform: "ensemble"', 'backend: "python"'),
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (ensemble(step(), rest='backend: "python"'), "Ensemble model 'm' must have platform type 'ensemble'"),
    (ensemble(step(), rest="instance_group { count: 1 }"), "instance group should not be specified for ensemble 'm'"),
    (ensemble(step(), rest="optimization { }"), "optimization should not be specified for ensemble 'm'"),
    (ensemble(step(), rest='model_warmup { name: "w" }'), "model_warmup can not be specified for ensemble 'm'"),
    (ensemble(step(model="")), "must specify 'model_name' in step 0 of ensemble 'm'"),
    (ensemble(step(), step(inputs='key: "I" value: "X"', outputs='key: "O" value: "Y"')), "'X' is not written"),
    (ensemble(step(), step(outputs='key: "O" value: "T"')), "ensemble tensor 'T' is unused in ensemble 'm'"),
    (
        ensemble(step(), step()),
        "ensemble tensor 'O' can appear in an output map only once for ensemble 'm' step 1",
    ),
    (
        ensemble(step(), rest='input { name: "J" data_type: TYPE_FP32 dims: 1 }'),
        "ensemble input 'J' for ensemble m' is not used",
    ),
    (
        ensemble(step(), rest='output { name: "P" data_type: TYPE_FP32 dims: 1 }'),
        "ensemble output 'P' for ensemble m' is not used",
    ),
    (
        ensemble(
            step(),
            step(inputs='key: "I" value: "X"', outputs='key: "O" value: "Y"'),
            rest='output { name: "Y" data_type: TYPE_FP32 dims: 1 }',
        ),
        "output 'Y' for ensemble 'm' is not written: at least one of its depending tensors, 'X', is not connected",
    ),
    (
        ensemble(
            step(),
            step(inputs='key: "I" value: "X"', outputs='key: "O" value: "Q"'),
            rest='output { name: "X" data_type: TYPE_FP32 dims: 1 }',
        ),
        "output 'X' for ensemble 'm' is not written",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_rejects(text: str, message: str):
    errors = [problem for problem in problems_of(text) if problem.is_error]
    assert any(message in problem.message for problem in errors), [str(problem) for problem in errors]


# Configurations that a real server loads.
ACCEPTED = [
    MODEL,
    BATCHING,
    'backend: "python"',
    'backend: "custom" runtime: "libcustom.so"',
    'platform: "onnxruntime_onnx"' + MODEL,
    MODEL + "instance_group { count: 2 }",
    BATCHING + "dynamic_batching { }",
    dynamic("priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 value { } }"),
    dynamic("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
    tensor('name: "I" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] }'),
    tensor('name: "I" data_type: TYPE_FP32 dims: [ 1 ] reshape { }') + " max_batch_size: 2",
    tensor('name: "I" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] format: FORMAT_NCHW'),
    BATCHING.replace("python", "onnxruntime")
    + 'batch_input { target_name: "T" data_type: TYPE_FP32 source_input: "I" } '
    + 'batch_output { target_name: "O" source_input: "I" }',
    sequence(""),
    sequence("iterative_sequence: true"),
    sequence("direct { max_queue_delay_microseconds: 5 }"),
    control(f"{CORRID} data_type: TYPE_STRING"),
    state('initial_state { name: "i" data_type: TYPE_FP32 dims: 4 data_file: "zero" }'),
    MODEL + "response_cache { enable: true }",
    MODEL
    + 'response_cache { enable: true } parameters { key: "response_cache_max_bytes" value { string_value: "1" } }',
    BATCHING
    + 'model_warmup { name: "w" batch_size: 4 '
    + 'inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 random_data: true } } }',
    ensemble(step()),
    ensemble(step(outputs='key: "O" value: "T"'), step(inputs='key: "I" value: "T"')),
    # The order of steps does not matter.
    ensemble(step(inputs='key: "I" value: "T"'), step(outputs='key: "O" value: "T"')),
    ensemble(step(), rest="model_transaction_policy { decoupled: true }"),
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepts(text: str):
    assert [str(problem) for problem in problems_of(text)] == []


WARNED = [
    (
        MODEL + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "zz" } } }',
        "gpu_execution_accelerator has no effect: instance group 'm' is not on GPUs, and 0 GPUs were found",
    ),
    (
        control(f"{START} int32_false_true: [ 0, 1 ]", f"{CORRID} data_type: TYPE_INT32"),
        "control tensor 'S' has several controls, but represents only the first",
    ),
    (MODEL + "dynamic_batching { }", "'dynamic_batching' has no effect while 'max_batch_size' is 0"),
    (dynamic("priority_queue_policy { key: 1 value { } }"), "priorities have no effect while 'priority_levels' is 0"),
    (tensor('name: "I" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true'), "'allow_ragged_batch' of input 'I'"),
    (
        BATCHING + 'batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "I" }',
        "no effect on Python models",
    ),
    (control(), "control tensor 'S' has no 'control'"),
    (sequence(f'control_input {{ name: "I" control {{ {START} fp32_false_true: [ 0, 1 ] }} }}'), "is also an input"),
    (sequence('state { input_name: "I" output_name: "T" data_type: TYPE_FP32 dims: [ 4 ] }'), "is also an input"),
]


@pytest.mark.parametrize(("text", "message"), WARNED, ids=[message for _, message in WARNED])
def test_warns_of_what_triton_lets_pass(text: str, message: str):
    (problem,) = problems_of(text)
    assert not problem.is_error
    assert message in problem.message


def test_tag_that_is_no_label_has_suggestion():
    (problem,) = [p for p in problems_of(MODEL + 'metric_tags { key: "my-team" value: "a" }') if p.is_error]
    assert (problem.path, problem.text, problem.suggestion) == ('metric_tags["my-team"]', "my-team", "my_team")
    assert problem.expected == "letters, digits and _, no digit first"
    assert problem.line


def test_negative_count_is_a_warning():
    (problem,) = validate(
        parse(MODEL + 'name: "m" instance_group { count: -1 }').config, model_name="m", known_backends=None
    )
    assert not problem.is_error


@pytest.mark.parametrize(("kind", "gpu_count", "count"), [("KIND_CPU", 0, 1), ("KIND_CPU", 2, 1), ("KIND_GPU", 2, 0)])
def test_gpu_accelerator_without_gpu_warns(kind: str, gpu_count: int, count: int):
    accelerator = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }'
    text = f'{MODEL} name: "m" instance_group {{ name: "g" kind: {kind} }} {accelerator}'
    problems = validate(parse(text).config, model_name="m", gpu_count=gpu_count)
    found = f"instance group 'g' is not on GPUs, and {gpu_count} GPUs were found"
    assert [(found in problem.message, problem.is_error) for problem in problems] == [(True, False)] * count


def test_all_problems_come_together_each_at_its_place():
    text = """name: "m"
backend: "pythn"
max_batch_size: 4
input { name: "I" data_type: TYPE_FP32 dims: [ 4, 0 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 3 ] } }
dynamic_batching { preferred_batch_size: [ 2, 9 ] }
"""
    found = {(problem.line, problem.column): problem.path for problem in problems_of(text)}
    assert found == {
        (2, 10): "backend",
        (6, 47): "dynamic_batching.preferred_batch_size[1]",
        (4, 51): "input[0].dims[1]",
        (5, 63): "output[0].reshape.shape",
    }


def test_unknown_backend_has_a_suggestion():
    (problem,) = problems_of('backend: "onnxruntim"')
    assert problem.suggestion == "onnxruntime"
    assert problem.expected == "one of onnxruntime, python"


def test_what_a_backend_completes_is_not_missing_yet():
    text = 'backend: "python" input { name: "I" } output { name: "O" label_filename: "l.txt" }'
    assert problems_of(text, complete=False) == []
    assert len(problems_of(text, complete=True)) == 4


def test_config_without_a_name_is_rejected():
    (problem,) = validate(parse(MODEL).config)
    assert problem.message == "model configuration must specify 'name'"


def test_config_without_backend_and_platform_is_rejected():
    (problem,) = validate(ModelConfig(name="m"), known_backends=["python"])
    assert problem.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


def member(text: str = MODEL, name: str = "m1") -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(parse(text).config)
    config.name = name
    return config


def member_messages(text: str, *members: ModelConfig) -> list[str]:
    parsed = parse('name: "e"' + text)
    problems = ensemble_member_problems(parsed.config, {one.name: one for one in members}, parsed)
    assert all(problem.line for problem in problems)
    return [problem.message for problem in problems]


def test_ensemble_fits_its_members():
    assert member_messages(ensemble(step()), member()) == []
    assert member_messages(ensemble(step(), rest="max_batch_size: 4"), member(BATCHING)) == []


def test_ensemble_with_incomplete_member_is_not_compared():
    assert member_messages(ensemble(step('key: "Z" value: "I"')), member('backend: "python"')) == []


def test_ensemble_misses_a_model():
    # E12
    assert member_messages(ensemble(step(model="m2")), member()) == [
        "ensemble e contains models that are not available or ambiguous: m2"
    ]


def test_ensemble_maps_what_is_not_there():
    assert member_messages(ensemble(step('key: "Z" value: "I"', 'key: "Q" value: "O"')), member()) == [
        "in ensemble e, ensemble tensor I is mapping to non-existing input Z in model m1",
        "in ensemble e, input I in model m1 is not mapped to any ensemble tensors",
        "in ensemble e, ensemble tensor O is mapped from non-existing output Q in model m1",
    ]


def test_ensemble_may_leave_out_an_optional_input():
    extended = member(MODEL + 'input { name: "J" data_type: TYPE_FP32 dims: 4 optional: true }')
    assert member_messages(ensemble(step()), extended) == []


def test_ensemble_differs_in_datatype_and_shape():
    text = ensemble(step()).replace('"I" data_type: TYPE_FP32 dims: [ 4 ]', '"I" data_type: TYPE_INT32 dims: [ 5 ]')
    assert member_messages(text, member()) == [
        "in ensemble e, ensemble tensor I: inconsistent data type: TYPE_INT32 is inferred from model e while "
        "TYPE_FP32 is inferred from model m1",
        "in ensemble e, ensemble tensor I: inconsistent shape: [5] is inferred from model e while [4] is inferred "
        "from model m1",
    ]


def test_members_differ_in_a_tensor_between_them():
    # E12
    first, second = step(outputs='key: "O" value: "x"'), step(inputs='key: "I" value: "x"', model="m2")
    other = member(
        BATCHING.replace('"I" data_type: TYPE_FP32 dims: [ 4 ]', '"I" data_type: TYPE_INT32 dims: [ 5 ]'), "m2"
    )
    assert member_messages(ensemble(first, second), member(BATCHING), other) == [
        "in ensemble e, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model m1 while "
        "TYPE_INT32 is inferred from model m2",
        "in ensemble e, ensemble tensor x: inconsistent shape: [-1,4] is inferred from model m1 while [-1,5] is "
        "inferred from model m2",
    ]
    assert member_messages(ensemble(first, second), member(BATCHING), member(BATCHING, "m2")) == []


def test_reshaped_ensemble_tensors_are_compared_by_members():
    text = ensemble(step()).replace(
        '"I" data_type: TYPE_FP32 dims: [ 4 ]', '"I" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] }'
    )
    assert member_messages(text, member()) == []


def test_ensemble_dims_may_be_variable_across_batching():
    text = ensemble(step())
    assert member_messages(text.replace("dims: [ 4 ]", "dims: [ -1 ]"), member()) == []
    assert member_messages(text.replace("dims: [ 4 ]", "dims: [ 1, 4 ]"), member(BATCHING)) == []


def test_ensemble_batches_more_than_a_member():
    assert member_messages(ensemble(step(), rest="max_batch_size: 8"), member(BATCHING)) == [
        "ensemble e allows maximum batch size 8, but it contains model m1 which only allows maximum batch size "
        "to be 4"
    ]


@pytest.mark.parametrize(("rows", "dims"), [(1, "[ 4 ]"), (8, "[ 4 ]"), (8, "[ -1, 4 ]")])
def test_a_batching_ensemble_may_have_members_without_batches(rows: int, dims: str):
    # E3
    single = member(MODEL.replace("dims: [ 4 ]", f"dims: {dims}"))
    assert member_messages(ensemble(step(), rest=f"max_batch_size: {rows}"), single) == []


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("is_decoupled", [True, False])
def test_the_members_decide_whether_an_ensemble_is_decoupled(declared: bool, is_decoupled: bool):
    # E7
    one = member()
    one.model_transaction_policy.decoupled = is_decoupled
    config = parse(ensemble(step())).config
    config.model_transaction_policy.decoupled = declared
    assert has_decoupled_member(config, {"m1": one}) is is_decoupled


def test_circle_inside_an_ensemble():
    # E12
    circle = ensemble(
        step(),
        step(inputs='key: "I" value: "a"', outputs='key: "O" value: "b"'),
        step(inputs='key: "I" value: "b"', outputs='key: "O" value: "a"'),
    )
    messages = [problem.message for problem in problems_of(circle)]
    assert len(messages) == 2
    assert all("is not connected" in message for message in messages)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"e": ["m"]}, []),
        ({"e": ["e"]}, ["e", "e"]),
        ({"e": ["m", "f"], "f": ["g"], "g": ["e"]}, ["e", "f", "g", "e"]),
        ({"e": ["f", "f"], "f": ["g"], "g": ["m"]}, []),
        ({"e": ["f"], "f": ["g"], "g": ["f"]}, []),
    ],
)
def test_circle_of_ensembles(members: dict[str, list[str]], expected: list[str]):
    # E12
    assert find_ensemble_cycle(members, "e") == expected


def test_long_chain_of_ensembles_does_not_overflow():
    chain = {f"e{i}": [f"e{i + 1}"] for i in range(5000)}
    assert find_ensemble_cycle(chain, "e0") == []
    assert len(find_ensemble_cycle({**chain, "e5000": ["e0"]}, "e0")) == 5002

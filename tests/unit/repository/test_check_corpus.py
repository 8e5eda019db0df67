"""Broken repositories from practice: every error is explained, with its position and a suggestion."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from naiad.repository.model_check import check_path, is_model_dir
from naiad.repository.open_repository import open_path

BACKENDS = ("identity", "onnxruntime", "python")
GOOD = """backend: "python"
max_batch_size: 8
input [ { name: "I" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input [ { name: "I" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [ { model_name: "a" model_version: -1
    input_map { key: "I" value: "I" }
    output_map { key: "O" value: "O" } } ]
}
"""


def model(config: str = GOOD, **more: str) -> dict[str, str]:
    return {"m/config.pbtxt": config, "m/1/model.py": "", **more}


def changed(old: str, new: str) -> dict[str, str]:
    assert old in GOOD
    return model(GOOD.replace(old, new))


def ensemble(old: str = "", new: str = "") -> dict[str, str]:
    assert old in ENSEMBLE
    config = ENSEMBLE.replace(old, new) if old else ENSEMBLE
    return {"a/config.pbtxt": GOOD, "a/1/model.py": "", "e/config.pbtxt": config, "e/1/": ""}


Expected = tuple[str, str, str]
CORPUS: dict[str, tuple[Mapping[str, str], list[Expected]]] = {
    # --- text -------------------------------------------------------------------------------------------------------
    "typo in field": (
        changed("max_batch_size", "max_batch_sise"),
        [("m/config.pbtxt:2:1", "unknown field 'max_batch_sise' in ModelConfig", "max_batch_size")],
    ),
    "typo in nested field": (
        changed("data_type: TYPE_FP32 dims: [ 4 ] } ]\noutput", "datatype: TYPE_FP32 dims: [ 4 ] } ]\noutput"),
        [("m/config.pbtxt:3:21", "unknown field 'datatype' in input", "data_type")],
    ),
    "plural field": (changed("input [", "inputs ["), [("m/config.pbtxt:3:1", "unknown field 'inputs'", "input")]),
    "camelCase field": (
        changed("max_batch_size", "maxBatchSize"),
        [("m/config.pbtxt:2:1", "unknown field 'maxBatchSize'", "max_batch_size")],
    ),
    "field in the wrong block": (
        model(GOOD + "dims: [ 4 ]"), [("m/config.pbtxt:5:1", "it belongs in input, output", "")]
    ),
    "field of another server": (
        model(GOOD + "batching_parameters { max_batch: 3 }"),
        [("m/config.pbtxt:5:1", "unknown field 'batching_parameters'", "")],
    ),
    "framework's name of a datatype": (
        model(GOOD.replace("TYPE_FP32", "TYPE_FLOAT32", 1)),
        [("m/config.pbtxt:3:32", "name 'TYPE_FLOAT32' is not a value for 'data_type'", "TYPE_FP32")],
    ),
    "datatype without prefix": (
        model(GOOD.replace("TYPE_FP32", "FP32", 1)), [("m/config.pbtxt:3:32", "name 'FP32'", "TYPE_FP32")]
    ),
    "protocol's name of strings": (
        model(GOOD.replace("TYPE_FP32", "TYPE_BYTES", 1)),
        [("m/config.pbtxt:3:32", "name 'TYPE_BYTES'", "TYPE_STRING")],
    ),
    "quoted enum": (
        model(GOOD.replace("TYPE_FP32", '"TYPE_FP32"', 1)),
        [("m/config.pbtxt:3:32", 'string "TYPE_FP32"', "TYPE_FP32")],
    ),
    "wrong instance kind": (
        model(GOOD + "instance_group [ { kind: CPU } ]"), [("m/config.pbtxt:5:26", "name 'CPU'", "KIND_CPU")]
    ),
    "missing comma between inputs": (
        changed("} ]\noutput", '} { name: "J" data_type: TYPE_FP32 dims: [ 4 ] } ]\noutput'),
        [("m/config.pbtxt:3:56", "missing ',' before '{' in the list 'input'", "")],
    ),
    "missing comma between dims": (
        model(GOOD.replace("[ 4 ]", "[ 4 5 ]", 1)), [("m/config.pbtxt:3:52", "missing ',' before '5'", "")]
    ),
    "comma at the end of a list": (
        model(GOOD.replace("[ 4 ]", "[ 4, ]", 1)), [("m/config.pbtxt:3:51", "',' before the end of the list", "")]
    ),
    "missing colon": (
        changed("max_batch_size:", "max_batch_size"), [("m/config.pbtxt:2:16", "missing ':'", "")]
    ),
    "equals sign": (changed("max_batch_size:", "max_batch_size ="), [("m/config.pbtxt:2:16", "'=' after", "")]),
    "missing brace": (
        changed("} ]\noutput", "]\noutput"), [("m/config.pbtxt:3:9", "'{' is never closed", "")]
    ),
    "missing brace at the end": (
        model(GOOD + "dynamic_batching {\n"), [("m/config.pbtxt:5:18", "'{' is never closed", "")]
    ),
    "missing bracket": (
        model(GOOD.replace("[ 4 ]", "[ 4", 1)), [("m/config.pbtxt:3:48", "'[' is never closed", "")]
    ),
    "one bracket too many": (model(GOOD + "]"), [("m/config.pbtxt:5:1", "']' closes no block", "")]),
    "list without braces": (
        model('backend: "python"\ninput [ name: "I" ]'),
        [("m/config.pbtxt:2:9", "unexpected 'name' in the list 'input'", "")],
    ),
    "unquoted string": (
        changed('"python"', "python"),
        [("m/config.pbtxt:1:10", "name 'python' is not a value for 'backend'", '"python"')],
    ),
    "unclosed string": (changed('"python"', '"python'), [("m/config.pbtxt:1:10", "is not closed on its line", "")]),
    "typographic quotes": (changed('"python"', "“python”"), [("m/config.pbtxt:1:10", "typographic quotes", "")]),
    "quoted number": (changed("8", '"8"'), [("m/config.pbtxt:2:17", 'string "8" is not a value', "8")]),
    "number with a fraction": (changed("8", "8.5"), [("m/config.pbtxt:2:17", "number '8.5'", "")]),
    "number too large": (changed("8", "99999999999"), [("m/config.pbtxt:2:17", "out of range", "")]),
    "yes for true": (
        model(GOOD + "model_transaction_policy { decoupled: yes }"), [("m/config.pbtxt:5:39", "name 'yes'", "true")]
    ),
    "field given twice": (
        model(GOOD + "max_batch_size: 4"), [("m/config.pbtxt:5:1", "given twice, first on line 2", "")]
    ),
    "two schedulers": (
        model(GOOD + "dynamic_batching { }\nsequence_batching { }"),
        [("m/config.pbtxt:6:1", "cannot be given along with 'dynamic_batching'", "")],
    ),
    "comment of another language": (model("// m\n" + GOOD), [("m/config.pbtxt:1:1", "is not a comment", "")]),
    "JSON instead of text format": (
        model('{ "backend": "python" }'),
        [("m/config.pbtxt:1:1", "unexpected '{'", "")],
    ),
    "parameter without string_value": (
        model(GOOD + 'parameters { key: "a" value: "b" }'), [("m/config.pbtxt:5:30", "'value' needs a block", "")]
    ),
    "not text": (model("\xff\xfe\x00"), [("m/config.pbtxt:1:1", "0xff is not UTF-8 text", "")]),
    "several mistakes at once": (
        model(
            'backend: "pythn"\nmax_batch_sise: -3\ninput [ { name: "I" data_type: FP32 dims: [ 0 ] } ]\n'
            'output [ { nam: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        ),
        [
            ("m/config.pbtxt:2:1", "unknown field 'max_batch_sise'", "max_batch_size"),
            ("m/config.pbtxt:3:32", "name 'FP32'", "TYPE_FP32"),
            ("m/config.pbtxt:4:12", "unknown field 'nam'", "name"),
            ("m/config.pbtxt:1:10", "unable to find backend library for backend 'pythn'", "python"),
            ("m/config.pbtxt:2:17", "'max_batch_size' must be non-negative", ""),
            ("m/config.pbtxt:3:45", "dimension must be integer >= 1", ""),
        ],
    ),
    # --- meaning ----------------------------------------------------------------------------------------------------
    "unknown backend": (
        {"m/config.pbtxt": 'backend: "onnx_runtime"', "m/1/model.onnx": ""},
        [("m/config.pbtxt:1:10", "unable to find backend library for backend 'onnx_runtime'", "onnxruntime")],
    ),
    "backend that is not installed": (
        {"m/config.pbtxt": 'platform: "tensorrt_plan"', "m/1/model.plan": ""},
        [("m/config.pbtxt:1:11", "unable to find backend library for backend 'tensorrt'", "")],
    ),
    "unknown platform": (
        {"m/config.pbtxt": 'platform: "onnxruntime_onx"', "m/1/model.bin": ""},
        [("m/config.pbtxt:1:11", "unexpected platform type 'onnxruntime_onx'", "onnxruntime_onnx")],
    ),
    "platform of another backend": (
        {"m/config.pbtxt": 'backend: "onnxruntime"\nplatform: "tensorrt_plan"', "m/1/model.onnx": ""},
        [("m/config.pbtxt:2:11", "unexpected 'platform' and 'backend' pair", "")],
    ),
    "name of another model": (
        model('name: "other"\n' + GOOD),
        [("m/config.pbtxt:1:7", "directory name must equal model name", "")],
    ),
    "negative batch size": (changed("8", "-1"), [("m/config.pbtxt:2:17", "must be non-negative", "")]),
    "zero dim": (model(GOOD.replace("[ 4 ]", "[ 0 ]", 1)), [("m/config.pbtxt:3:50", "must be integer >= 1", "")]),
    "dim of minus two": (
        model(GOOD.replace("[ 4 ]", "[ -2 ]", 1)), [("m/config.pbtxt:3:50", "must be integer >= 1", "")]
    ),
    "reshape of another size": (
        model(GOOD.replace("[ 4 ]", "[ 4 ] reshape { shape: [ 3 ] }", 1)),
        [("m/config.pbtxt:3:64", "has different size for dims and reshape", "")],
    ),
    "duplicate input": (
        changed("} ]\noutput", '}, { name: "I" data_type: TYPE_FP32 dims: [ 4 ] } ]\noutput'),
        [("m/config.pbtxt:3:65", "model input 'I' is specified more than once", "")],
    ),
    "duplicate output": (
        model(GOOD + 'output [ { name: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]'),
        [("m/config.pbtxt:5:18", "model output 'O' is specified more than once", "")],
    ),
    "input without name": (changed('name: "I" ', ""), [("m/config.pbtxt:3:9", "must specify 'name'", "")]),
    "preferred size above the largest batch": (
        model(GOOD + "dynamic_batching { preferred_batch_size: [ 4, 16 ] }"),
        [("m/config.pbtxt:5:47", "preferred size must be <= max batch size", "")],
    ),
    "priorities without a default": (
        model(GOOD + "dynamic_batching { priority_levels: 3 }"),
        [("m/config.pbtxt:5:1", "default priority level must be in range [1, 3]", "")],
    ),
    "ordering with priorities": (
        model(GOOD + "dynamic_batching { preserve_ordering: true priority_levels: 3 default_priority_level: 1 }"),
        [("m/config.pbtxt:5:61", "Only one priority level is allowed", "")],
    ),
    "GPU on a machine without": (
        model(GOOD + "instance_group [ { kind: KIND_GPU } ]"),
        [("m/config.pbtxt:5:26", "has kind KIND_GPU but no GPUs are available", "")],
    ),
    "GPU list for a CPU group": (
        model(GOOD + "instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]"),
        [("m/config.pbtxt:5:35", "has kind KIND_CPU but specifies one or more GPUs", "")],
    ),
    "cache with decoupled": (
        model(GOOD + "response_cache { enable: true }\nmodel_transaction_policy { decoupled: true }"),
        [("m/config.pbtxt:5:26", "with 'decoupled' transaction policy", "")],
    ),
    "control with one value": (
        model(
            GOOD + 'sequence_batching { control_input [ { name: "S"\n'
            "control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 1 ] } ] } ] }"
        ),
        [("m/config.pbtxt:6:42", "'fp32_false_true' must have exactly 2 entries", "")],
    ),
    # --- files ------------------------------------------------------------------------------------------------------
    "no version directory": (
        {"m/config.pbtxt": GOOD}, [("m", "at least one version must be available under the version policy", "")]
    ),
    "model file outside a version directory": (
        {"m/config.pbtxt": GOOD, "m/model.py": ""}, [("m", "expected model.py in a version directory", "")]
    ),
    "version directory that is no number": (
        {"m/config.pbtxt": GOOD, "m/v1/model.py": ""},
        [
            ("m/v1", "directory 'v1' of model 'm' is not a version", "1"),
            ("m", "at least one version must be available", ""),
        ],
    ),
    "version with leading zeros": (
        {"m/config.pbtxt": GOOD, "m/001/model.py": ""},
        [
            ("m/001", "directory '001' of model 'm' is not a version", "1"),
            ("m", "at least one version must be available", ""),
        ],
    ),
    "version that is a file": (
        {"m/config.pbtxt": GOOD, "m/1": ""},
        [("m/1", "version '1' is a file", ""), ("m", "at least one version must be available", "")],
    ),
    "policy asks for versions that are not there": (
        model(GOOD + "version_policy { specific { versions: [ 2, 3 ] } }"),
        [
            ("m/config.pbtxt:5:41", "version 2 is specified for model 'm', but the version directory is not", ""),
            ("m/config.pbtxt:5:44", "version 3 is specified", ""),
            ("m", "at least one version must be available", ""),
        ],
    ),
    "policy of no version": (
        model(GOOD + "version_policy { latest { num_versions: 0 } }"),
        [("m/config.pbtxt:5:41", "at least one version must be available", "")],
    ),
    "empty version directory": (
        {"m/config.pbtxt": GOOD, "m/1/": ""}, [("m/1", "has no model file 'model.py'", "")]
    ),
    "wrong file name": (
        {"m/config.pbtxt": 'backend: "onnxruntime"', "m/1/modle.onnx": ""},
        [("m/1", "has no model file 'model.onnx'", "modle.onnx")],
    ),
    "file name of the exporter": (
        {"m/config.pbtxt": 'backend: "onnxruntime"', "m/1/resnet50_opset17.onnx": ""},
        [("m/1", "has no model file 'model.onnx'", "resnet50_opset17.onnx")],
    ),
    "default_model_filename that is not there": (
        model(GOOD + 'default_model_filename: "mine.py"'),
        [("m/config.pbtxt:5:25", "has no model file 'mine.py'", "model.py")],
    ),
    "model file of another backend": (
        {"m/config.pbtxt": GOOD, "m/1/model.onnx": ""}, [("m/1", "has no model file 'model.py'", "")]
    ),
    "configuration under another name": (
        {"m/config.pbtx": GOOD, "m/1/model.bin": ""},
        [
            ("m/config.pbtx", "not read as the configuration of model 'm'", "config.pbtxt"),
            ("m", "Could not determine backend", ""),
        ],
    ),
    "no configuration and no known file": (
        {"m/1/weights.h5": ""}, [("m", "Could not determine backend for model 'm'", "")]
    ),
    "label file that is not there": (
        model(GOOD.replace('name: "O"', 'name: "O" label_filename: "label.txt"'), **{"m/labels.txt": ""}),
        [("m/config.pbtxt:4:38", "failed to open text file for read", "labels.txt")],
    ),
    "label file outside the model": (
        model(GOOD.replace('name: "O"', 'name: "O" label_filename: "../l.txt"')),
        [("m/config.pbtxt:4:38", "must stay within model directory", "")],
    ),
    "warmup file that is not there": (
        model(
            GOOD + 'model_warmup { name: "w" batch_size: 1 inputs { key: "I"\n'
            'value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "raw" } } }'
        ),
        [("m/config.pbtxt:6:59", "failed to open text file for read", "")],
    ),
    # --- ensembles --------------------------------------------------------------------------------------------------
    "ensemble of a model that is not there": (
        ensemble('model_name: "a"', 'model_name: "aa"'),
        [("e/config.pbtxt:6:24", "contains models that are not available or ambiguous: aa", "a")],
    ),
    "ensemble maps an input that is not there": (
        ensemble('key: "I"', 'key: "INPUT"'),
        [
            ("e/config.pbtxt:7:22", "mapping to non-existing input INPUT in model a", ""),
            ("e/config.pbtxt:7:5", "input I in model a is not mapped", ""),
        ],
    ),
    "ensemble maps an output that is not there": (
        ensemble('key: "O"', 'key: "P"'),
        [("e/config.pbtxt:8:23", "mapped from non-existing output P in model a", "")],
    ),
    "ensemble reads a tensor without a writer": (
        ensemble('value: "I"', 'value: "J"'),
        [
            ("e/config.pbtxt:3:17", "ensemble input 'I' for ensemble e' is not used", ""),
            ("e/config.pbtxt:4:18", "at least one of its depending tensors, 'J', is not connected", ""),
            ("e/config.pbtxt:7:22", "ensemble tensor 'J' is not written", ""),
        ],
    ),
    "ensemble output without a writer": (
        ensemble('value: "O"', 'value: "OUT"'),
        [
            ("e/config.pbtxt:4:18", "ensemble output 'O' for ensemble e' is not used", ""),
            ("e/config.pbtxt:8:23", "ensemble tensor 'OUT' is unused", ""),
        ],
    ),
    "ensemble of itself": (
        ensemble('model_name: "a"', 'model_name: "e"'),
        [("e/config.pbtxt:6:24", "circular dependency between ensembles: e -> ... -> e -> e", "")],
    ),
    "two ensembles of each other": (
        {
            **ensemble('model_name: "a"', 'model_name: "f"'),
            "f/config.pbtxt": ENSEMBLE.replace('"a"', '"e"'),
            "f/1/": "",
        },
        [
            ("e/config.pbtxt:6:24", "circular dependency between ensembles: e -> ... -> f -> e", ""),
            ("f/config.pbtxt:6:24", "circular dependency between ensembles: f -> ... -> e -> f", ""),
        ],
    ),
    "ensemble with another datatype": (
        ensemble('"I" data_type: TYPE_FP32', '"I" data_type: TYPE_INT64'),
        [("e/config.pbtxt:7:22", "inconsistent data type: TYPE_INT64 is inferred from model e while TYPE_FP32", "")],
    ),
    "ensemble with other dims": (
        ensemble('"I" data_type: TYPE_FP32 dims: [ 4 ]', '"I" data_type: TYPE_FP32 dims: [ 3, 4 ]'),
        [("e/config.pbtxt:7:22", "inconsistent shape: [-1,3,4] is inferred from model e while [-1,4]", "")],
    ),
    "ensemble batches more than its members": (
        ensemble("max_batch_size: 8", "max_batch_size: 64"),
        [("e/config.pbtxt:6:10", "allows maximum batch size 64, but it contains model a", "")],
    ),
    "ensemble with instances": (
        ensemble('platform: "ensemble"', 'platform: "ensemble" instance_group { count: 2 }'),
        [("e/config.pbtxt:1:22", "instance group should not be specified for ensemble 'e'", "")],
    ),
    "ensemble without steps": (
        {"e/config.pbtxt": 'platform: "ensemble"', "e/1/": ""},
        [("e/config.pbtxt:1:11", "ensemble scheduling must be set", "")],
    ),
}  # fmt: skip


def build(root: Path, tree: Mapping[str, str]) -> None:
    for name, text in tree.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1") if text.startswith("\xff") else text.encode())


def test_corpus_is_as_large_as_it_promises():
    assert len(CORPUS) >= 60


@pytest.mark.parametrize("case", CORPUS)
def test_every_mistake_is_explained(case: str, tmp_path: Path):
    tree, expected = CORPUS[case]
    build(tmp_path, tree)
    reports = check_path(tmp_path, known_backends=BACKENDS)
    problems = [problem for report in reports for problem in report.problems]
    shown = "\n".join(str(problem) for problem in problems)
    assert any(problem.is_error for problem in problems), shown
    for place, message, suggestion in expected:
        found = [p for p in problems if message in str(p) and str(p).startswith(f"{tmp_path / place}:")]
        assert found, f"{place}: {message!r} is not in\n{shown}"
        assert found[0].suggestion == suggestion, shown
    assert len(problems) == len(expected), shown


def test_unknown_backend_is_reported_with_fix(tmp_path: Path):
    build(tmp_path, {"m/config.pbtxt": 'backend: "pytorch"', "m/1/model.pt": ""})
    (report,) = check_path(tmp_path, known_backends=BACKENDS)
    (problem,) = report.problems
    assert problem.expected.startswith("one of identity")
    assert problem.expected.endswith("any framework runs in the model.py of the python backend")


def test_good_repository_has_no_problem(tmp_path: Path):
    build(tmp_path, {**ensemble(), "o/1/model.onnx": "", "x.identity/1/": "", ".git/1": "", "README.txt": ""})
    reports = check_path(tmp_path, known_backends=BACKENDS)
    assert [str(problem) for report in reports for problem in report.problems] == []
    assert {report.name: report.config.backend for report in reports} == {
        "a": "python", "e": "", "o": "onnxruntime", "x.identity": "identity",
    }  # fmt: skip


def test_one_model_is_checked_by_itself(tmp_path: Path):
    build(tmp_path, ensemble())
    (report,) = check_path(tmp_path / "e", known_backends=BACKENDS)
    # The repository checks whether the members exist.
    assert report.is_ok


def test_configuration_file_is_checked_without_its_files(tmp_path: Path):
    build(tmp_path, {"m/config.pbtxt": GOOD + "max_batch: 1"})
    (report,) = check_path(tmp_path / "m" / "config.pbtxt", known_backends=BACKENDS)
    assert [(problem.line, problem.column) for problem in report.problems] == [(5, 1)]


def test_strict_needs_a_complete_configuration(tmp_path: Path):
    build(
        tmp_path, {"m/1/model.py": "", "n/config.pbtxt": 'backend: "python" input { name: "I" }', "n/1/model.py": ""}
    )
    assert all(report.is_ok for report in check_path(tmp_path, known_backends=BACKENDS))
    first, second = check_path(tmp_path, known_backends=BACKENDS, strict=True)
    assert "has no config.pbtxt" in first.problems[0].message
    assert [problem.message for problem in second.problems] == [
        "model input 'I' must specify 'data_type' for n",
        "model input 'I' must specify 'dims' for n",
    ]


def test_odd_version_directory_name_is_warning(tmp_path: Path):
    build(tmp_path, model(**{"m/v2/model.py": "", "m/notes/todo.txt": ""}))
    (report,) = check_path(tmp_path, known_backends=BACKENDS)
    assert report.is_ok
    assert [problem.suggestion for problem in report.problems] == ["2"]


def test_empty_repository_and_missing_path_are_errors(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nowhere"):
        (report,) = check_path(path, known_backends=BACKENDS)
        assert not report.is_ok


def test_class_of_pytorch_needs_no_weights(tmp_path: Path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(GOOD.replace('"python"', '"pytorch"'))
    (tmp_path / "m" / "1" / "model.py").touch()
    (report,) = check_path(tmp_path, known_backends={*BACKENDS, "pytorch"})
    assert report.is_ok, report.problems


def test_bare_model_file_has_nothing_to_check(tmp_path: Path):
    build(tmp_path, {"mine.onnx": "", "mine.py": ""})
    for name, backend in (("mine.onnx", "onnxruntime"), ("mine.py", "python")):
        (report,) = check_path(tmp_path / name, known_backends=BACKENDS)
        assert report.is_ok
        assert (report.name, report.config.backend) == ("mine", backend)


@pytest.mark.parametrize(
    "files",
    [
        {"m/MLmodel": "", "m/model.skops": ""},
        {"m/model.safetensors": "", "m/config.json": "{}"},
        {"m/saved_model.pb": "", "m/variables/variables.index": ""},
        {"m/model.onnx": "", "m/labels.txt": ""},
        {"m/model.py": ""},
    ],
)
def test_bare_directory_is_what_a_server_opens(tmp_path: Path, files: dict[str, str]):
    build(tmp_path, files)
    (report,) = check_path(tmp_path / "m", known_backends=BACKENDS)
    served = open_path(tmp_path / "m").open_model("m")
    assert report.is_ok, report.problems
    assert (report.name, report.config.backend) == (served.name, served.preset.backend)


@pytest.mark.parametrize("files", [model(), {"m/MLmodel": ""}, {"m/model.py": "", "m/notes.txt": ""}])
def test_current_directory_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]):
    build(tmp_path, files)
    monkeypatch.chdir(tmp_path / "m")
    (report,) = check_path(Path(), known_backends=BACKENDS)
    assert report.is_ok, report.problems
    assert report.name == "m"


@pytest.mark.parametrize("text", ["max_batch_size: ${SIZE}\n" * 2, "\xff", "#" * (2 << 20)])
def test_unread_file_has_one_error(tmp_path: Path, text: str):
    """Without a backend in it, and without files that would name one."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_bytes(text.encode("latin-1"))
    (report,) = check_path(tmp_path, known_backends=BACKENDS)
    assert [problem.is_error for problem in report.problems] == [True]
    (report,) = check_path(tmp_path / "m" / "config.pbtxt", known_backends=BACKENDS)
    assert [problem.is_error for problem in report.problems] == [True]


def test_huge_file_is_not_read(tmp_path: Path):
    build(tmp_path, model("#" * (5 << 20)))
    (report,) = check_path(tmp_path, known_backends=BACKENDS)
    assert [problem.message for problem in report.problems] == ["the file is larger than any configuration"]


def test_initial_state_file_is_looked_for(tmp_path: Path):
    config = """sequence_batching { state { input_name: "a" output_name: "b" data_type: TYPE_FP32 dims: [ 1 ]
initial_state { name: "i" data_type: TYPE_FP32 dims: [ 1 ] data_file: "%s" } } }"""
    build(tmp_path, model(GOOD + config % "zero", **{"m/initial_state/zeros": ""}))
    (report,) = check_path(tmp_path, known_backends=BACKENDS)
    (problem,) = report.problems
    assert (problem.line, problem.suggestion) == (6, "zeros")


def test_model_directory_is_distinguished_from_repository(tmp_path: Path):
    build(tmp_path, {"m/1/weights.bin": "", "r/1/1/model.onnx": "", "s/README.txt": "", "s/a/1/model.onnx": ""})
    assert is_model_dir(tmp_path / "m")
    # A model may be named 1.
    assert not is_model_dir(tmp_path / "r")
    assert not is_model_dir(tmp_path / "s")

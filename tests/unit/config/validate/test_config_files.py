"""File names in a configuration: inside the model's directory, and such as a file can have."""

import pytest

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.validate.file_names import check_files, file_names, is_outside, name_problem
from naiad.config.validate.model import validate
from support.config_fields import fields_of

OUTSIDE = ["/etc/passwd", "../x", "a/../../x", "..", "a\\..\\x"]


def with_name(field: str, name: str) -> ModelConfig:
    config = ModelConfig(name="m", backend="python")
    if field == "default_model_filename":
        config.default_model_filename = name
    elif field == "cc_model_filenames":
        config.cc_model_filenames["7.5"] = name
    elif field == "op_library_filename":
        config.model_operations.op_library_filename.append(name)
    elif field == "label_filename":
        config.output.add(name="O", label_filename=name)
    elif field == "input_data_file":
        config.model_warmup.add(name="w", batch_size=1).inputs["I"].input_data_file = name
    elif field == "data_file":
        state = config.sequence_batching.state.add(input_name="i", output_name="o")
        state.initial_state.add(name="s", data_file=name)
    else:
        config.parameters[field].string_value = name
    return config


FIELDS = ("default_model_filename", "cc_model_filenames", "op_library_filename", "label_filename", "input_data_file",
          "data_file", "TF_INIT_OPS_FILE")  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_names_outside_of_the_model_are_refused(field: str, name: str) -> None:
    text = "\n".join(map(str, validate(with_name(field, name), model_name="m", known_backends=["python"])))
    assert "must stay within" in text


@pytest.mark.parametrize("field", [*FIELDS, "EXECUTION_ENV_PATH", "EXECUTION_ENV_PYTHON", "CPU_EXTENSION_PATH"])
@pytest.mark.parametrize("name", ["a" * 256, "é" * 128, "/".join(["d"] * 33), "a\nb", "a\0b"])
def test_names_that_no_file_has_are_refused(field: str, name: str) -> None:
    findings = Findings(with_name(field, name))
    check_files(findings)
    assert [problem.path for problem in findings.problems if field in problem.path]
    assert "\n" not in findings.problems[0].message


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", ["model.bin", "data/model.bin", "a..b", "a" * 255])
def test_names_inside_of_the_model_are_accepted(field: str, name: str) -> None:
    findings = Findings(with_name(field, name))
    check_files(findings)
    assert findings.problems == []


def test_owner_names_environments_anywhere() -> None:
    for name in ("/opt/env.tar.gz", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"):
        findings = Findings(with_name("EXECUTION_ENV_PATH", name))
        check_files(findings)
        assert findings.problems == []


def test_every_field_with_a_file_is_checked() -> None:
    """A new field of the schema that names a file has to be listed."""
    last_names = {path.rpartition(".")[2] for path in fields_of()}
    named = {name for name in last_names if name.endswith(("_file", "filename", "filenames", "path", "directory"))}
    places = [place for field in FIELDS for place, _, _ in file_names(with_name(field, "x"))]
    assert len(named) == 6
    assert [name for name in sorted(named) if not any(name in place for place in places)] == []


def test_levels_and_bytes() -> None:
    assert name_problem("/".join(["d"] * 32)) == ""
    assert name_problem("/".join(["d" * 250] * 9)) == "has 2258 bytes; the most is 2048"
    assert not is_outside("a/b..c")

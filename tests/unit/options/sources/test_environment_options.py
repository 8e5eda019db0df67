"""Options from environment variables, and their priority."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.options.sources.command_line import OptionError, parse_options
from naiad.server.model_serving import open_stores

VERTEX = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "5234", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h"}


def test_variables_set_options() -> None:
    options = parse_options([], {**VERTEX, "AIP_STORAGE_URI": "/models"})
    assert options.repository.paths == ("/models",)
    assert options.vertex_ai.allow
    assert (options.vertex_ai.port, options.vertex_ai.predict_route) == (5234, "/p")
    assert (options.http.allow, options.grpc.allow) == (False, False)


def test_command_line_replaces_variables() -> None:
    options = parse_options(["/mine", "--allow-grpc=true", "--vertex-ai-port=1"], {**VERTEX, "AIP_STORAGE_URI": "/x"})
    assert options.repository.paths == ("/mine",)
    assert (options.grpc.allow, options.http.allow, options.vertex_ai.port) == (True, False, 1)


@pytest.mark.parametrize("variable", ["AIP_STORAGE_URI", "AZUREML_MODEL_DIR"])
def test_missing_repository_names_its_variable(variable: str, tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    with pytest.raises(InferError, match=f"^{variable}: {path}: no such file or directory"):
        open_repository([], {variable: path})
    with pytest.raises(InferError, match=f"^{path}: no such file or directory"):
        open_repository([path], {variable: "/other"})


def open_repository(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    options = parse_options(arguments, variables)
    open_stores(options.repository, options.bare_models)


@pytest.mark.parametrize(
    ("arguments", "environ", "variable"),
    [([], VERTEX, "AIP_STORAGE_URI"), (["--allow-azure-ml=true"], {}, "AZUREML_MODEL_DIR")],
)
def test_cloud_without_repository_names_the_variable(
    arguments: list[str], environ: dict[str, str], variable: str
) -> None:
    with pytest.raises(OptionError, match=f"set {variable} or --model-repository"):
        parse_options(arguments, environ)


def test_wrong_variable_is_named() -> None:
    with pytest.raises(OptionError, match="AIP_HTTP_PORT: vertex-ai-port: 'many' is not an integer"):
        parse_options(["/m"], {**VERTEX, "AIP_HTTP_PORT": "many"})


def test_sagemaker_needs_no_arguments(tmp_path: Path) -> None:
    (tmp_path / "model" / "digits").mkdir(parents=True)
    environ = {
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "SAGEMAKER_BIND_TO_PORT": "9000",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "true",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--id 'a b'",
    }
    options = parse_options([], environ)
    assert options.repository.paths == (str(tmp_path / "model"),)
    assert options.repository.load_models == ("digits",)
    assert (options.sagemaker.port, options.sagemaker.default_model) == (9000, "digits")
    assert (options.server_id, options.log.verbose) == ("a b", 1)
    assert (options.http.allow, options.grpc.allow, options.metrics.allow) == (False, False, False)


def test_arguments_turn_the_start_of_sagemaker_off(tmp_path: Path) -> None:
    (tmp_path / "model" / "digits").mkdir(parents=True)
    options = parse_options(["/m"], {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert not options.sagemaker.allow
    assert options.http.allow


@pytest.mark.parametrize("text", ["8081", "a-b", "8081-"])
def test_wrong_port_range_is_named(text: str) -> None:
    with pytest.raises(OptionError, match="is not a range of ports; write one such as 8081-9000"):
        parse_options(["/m", "--allow-sagemaker=true", f"--sagemaker-safe-port-range={text}"], {})


def test_cloud_port_must_differ() -> None:
    with pytest.raises(OptionError, match="--http-port and --sagemaker-port are both 8000"):
        parse_options(["/m", "--allow-sagemaker=true", "--sagemaker-port=8000"], {})

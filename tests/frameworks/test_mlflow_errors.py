"""MLflow directories that are refused, each with directory, reason and fix."""

import shutil
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas
import pytest
import yaml
from google.protobuf import text_format
from mlflow.models import ModelSignature
from mlflow.types import DataType, Schema
from mlflow.types.schema import Array, ColSpec

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.mlflow.backend import MlflowBackend
from naiad.backend.mlflow.directory import digest_of
from naiad.backend.mlflow.mlflow_tensors import MlflowTensors
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType as TensorType
from naiad.core.errors import InferError
from naiad.core.tensor import TensorSpec
from naiad.integrations.mlflow.mlflow_tables import InputsError, tensors_of
from support.forests import parameters
from support.mlflow_models import save_python, save_sklearn, save_xgboost


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    save_sklearn(root / "skops", "skops")
    save_sklearn(root / "pickle", "cloudpickle")
    save_xgboost(root / "forest")
    save_python(root / "python")
    return root


@pytest.fixture
def copy(saved, tmp_path):
    def copied(name):
        shutil.copytree(saved / name, tmp_path / name)
        return tmp_path / name

    return copied


def load(directory, config="", **settings):
    backend = MlflowBackend()
    parsed = text_format.Parse(config, ModelConfig(name="model", backend="mlflow"))
    completed = backend.auto_complete(ModelContext("model", 1, parsed, directory, directory, 2, settings))
    model = backend.load(ModelContext("model", 1, completed, directory, directory, 2, settings))
    return model.create_instance(InstanceSpec("model_0_0", 0, "KIND_CPU"))


def failure(directory, config="", **settings):
    with pytest.raises(InferError) as raised:
        load(directory, config, **settings)
    return raised.value.message


def change(directory, **flavors):
    path = directory / "MLmodel"
    content = yaml.safe_load(path.read_text())
    for name, values in flavors.items():
        content["flavors"][name] |= values
    path.write_text(yaml.safe_dump(content))


def test_directories_without_code_are_loaded(saved):
    load(saved / "skops")
    load(saved / "forest")


@pytest.mark.parametrize("name", ["pickle", "python"])
def test_code_needs_permission(saved, name):
    own_parameter = parameters(**{"allow-pickle": "true"})
    message = failure(saved / name, own_parameter)
    assert message.startswith(f"model 'model' version 1: {saved / name} is loaded by ")
    assert "and loading it executes code of the directory" in message
    load(saved / name, **{"allow-pickle": "true"})


def test_other_digest_is_refused(copy):
    directory = copy("pickle")
    found = digest_of(directory)
    assert found not in failure(directory, parameters(sha256="0" * 64))
    load(directory, parameters(sha256=found))
    (directory / "extra.txt").write_text("x")
    assert "is not loaded: its SHA-256 digest is not" in failure(directory, parameters(sha256=found))


@pytest.mark.parametrize(
    ("name", "flavors"),
    [
        ("skops", {"sklearn": {"skops_trusted_types": ["os.system"]}}),
        ("skops", {"python_function": {"code": "code"}}),
        ("skops", {"python_function": {"loader_module": "os"}}),
        ("skops", {"python_function": {"model_path": "sub/model.skops"}}),
        ("skops", {"python_function": {"data": "sub"}}),
        ("forest", {"xgboost": {"model_class": "os.getcwd"}}),
        ("forest", {"python_function": {"data": "sub"}}),
    ],
)
def test_ways_to_other_code_need_permission(copy, name, flavors):
    directory = copy(name)
    (directory / "sub").mkdir()
    (directory / "sub" / "model.skops").write_text("x")
    change(directory, **flavors)
    assert "--allow-pickle" in failure(directory)


@pytest.mark.parametrize("content", ["", "flavors: [", "[1, 2]", "flavors: {sklearn: {}}", "{}"])
def test_damaged_description_is_named(copy, content):
    directory = copy("skops")
    (directory / "MLmodel").write_text(content)
    message = failure(directory)
    assert str(directory) in message
    assert "MLmodel file that cannot be read" in message or "has no flavour 'python_function'" in message


def test_truncated_model_is_named(copy):
    directory = copy("skops")
    path = directory / "model.skops"
    path.write_bytes(path.read_bytes()[:200])
    assert f"{directory} cannot be loaded by mlflow.sklearn" in failure(directory)


def test_missing_model_file_is_named(copy):
    directory = copy("forest")
    (directory / "model.ubj").unlink()
    assert "--allow-pickle" in failure(directory)
    assert "cannot be loaded by mlflow.xgboost" in failure(directory, **{"allow-pickle": "true"})


def test_missing_package_names_the_requirements(copy):
    directory = copy("pickle")
    change(directory, python_function={"loader_module": "no_such_package"})
    message = failure(directory, **{"allow-pickle": "true"})
    assert "needs a package that is not there: No module named 'no_such_package'" in message
    assert "EXECUTION_ENV_PATH" in message


def test_missing_signature_is_named(tmp_path):
    save_sklearn(tmp_path / "model", "skops", signature=None)
    assert "has no signature; save the model with signature=" in failure(tmp_path / "model")


def test_types_without_tensor_are_named(tmp_path):
    inputs, outputs = Schema([ColSpec(Array(DataType.string), "words")]), Schema([ColSpec(DataType.long)])
    mlflow.pyfunc.save_model(
        tmp_path / "model", loader_module="json", signature=ModelSignature(inputs, outputs), pip_requirements=["x"]
    )
    assert "input 'words' of the MLflow model is a Array(string), which the protocol cannot carry" in failure(
        tmp_path / "model"
    )


def column_of(kind, values):
    """Return a result of one column as its clients get it."""
    schema = Schema([ColSpec(kind, "c")])
    directory = SimpleNamespace(model=SimpleNamespace(signature=ModelSignature(schema, schema)))
    return MlflowTensors(directory).to_client(pandas.DataFrame({"c": values}), "c").tolist()


DATE = "2030-12-31T23:59:59"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_of_every_unit_are_text(unit):
    (found, missing) = column_of(DataType.datetime, np.array([DATE, "NaT"], f"datetime64[{unit}]"))
    assert (found[0][:19], missing) == (DATE, ["NaT"])


def test_dates_of_python_are_text():
    assert column_of(DataType.datetime, pandas.to_datetime([DATE], utc=True)) == [[f"{DATE}+00:00"]]


@pytest.mark.parametrize("kind", ["str", "string", "category", object])
def test_text_of_every_kind_of_pandas_is_text(kind):
    assert column_of(DataType.string, pandas.Series(["Zoë", "a"], dtype=kind)) == [["Zoë"], ["a"]]


@pytest.mark.parametrize(
    ("kind", "values", "dtype"),
    [
        (DataType.long, [1, None], "Int64"),
        (DataType.boolean, [True, None], "boolean"),
        (DataType.integer, [1, np.nan], float),
    ],
)
def test_missing_values_are_no_integers(kind, values, dtype):
    with pytest.raises(ValueError, match="output 'c' has values that are missing or not finite, which"):
        column_of(kind, pandas.Series(values, dtype=dtype))
    assert column_of(DataType.double, pandas.Series([1, None], dtype="Int64"))[0] == [1.0]


@pytest.mark.parametrize(("kind", "value"), [(DataType.integer, 2**40), (DataType.long, 1.5)])
def test_numbers_that_an_output_lacks_are_refused(kind, value):
    with pytest.raises(ValueError, match=r"output 'c' has values of .* lacks"):
        column_of(kind, pandas.Series([value]))
    assert column_of(kind, pandas.Series([7.0]))[0] == [7]


@pytest.mark.parametrize(
    ("datatype", "value"), [("UINT8", 300), ("INT32", 1.7), ("INT64", float("nan")), ("BOOL", 2)]
)
def test_numbers_that_an_input_lacks_are_refused(datatype, value):
    spec = TensorSpec("x", TensorType(datatype), (-1, 1))
    metadata = SimpleNamespace(name="m", inputs=[spec])
    with pytest.raises(InputsError, match=f"input 'x' expects {datatype}: values of .* would change"):
        tensors_of(metadata, pandas.DataFrame({"x": [value]}))
    assert tensors_of(metadata, pandas.DataFrame({"x": [1.0]}))["x"].tolist() == [[1]]

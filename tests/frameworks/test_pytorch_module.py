"""`model.py` with an nn.Module, without a server: weights, pickles, torch.compile and errors."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.torch_digits import CONFIG, SOURCE, save_module, save_torchscript, trained_digits

NAMED = CONFIG.replace("INPUT__0", "image")
TWO_CLASSES = SOURCE + "\n\nclass Other(torch.nn.Module):\n    pass\n"
PICKLES = {"allow-pickle": "true"}


def load(tmp_path, config=CONFIG, **options):
    return BackendModel(PyTorchBackend(), tmp_path / "m", config=f'name: "m" backend: "pytorch" {config}', **options)


def refusal(tmp_path, config=CONFIG):
    with pytest.raises(InferError) as caught:
        load(tmp_path, config)
    return caught.value.message


def check_digits(model, name="INPUT__0"):
    digits = trained_digits()
    for rows in (1, 5):
        found = model.infer({name: digits.images[:rows].numpy()})["OUTPUT__0"]
        np.testing.assert_allclose(found, digits.probabilities(rows), atol=1e-5)


def save(tmp_path, source=SOURCE):
    return save_module(source, trained_digits().module, tmp_path / "m" / "1" / "model.py")


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, NAMED, CONFIG + 'runtime: "model.py"'])
def test_class_and_state_dict_are_a_model(tmp_path, config):
    save(tmp_path)
    with load(tmp_path, config) as model:
        check_digits(model, "image" if config == NAMED else "INPUT__0")


def test_weights_may_be_safetensors(tmp_path):
    path = save(tmp_path)
    path.with_suffix(".pt").unlink()
    save_file(trained_digits().module.state_dict(), path.with_suffix(".safetensors"))
    with load(tmp_path) as model:
        check_digits(model)


def test_files_beside_the_class_are_importable(tmp_path):
    path = save(tmp_path, "from .layers import Digits as Base\n\n\nclass Model(Base):\n    pass\n")
    (path.parent / "layers.py").write_text(SOURCE)
    with load(tmp_path) as model:
        check_digits(model)


def test_other_weights_name_both_files(tmp_path):
    path = save(tmp_path)
    torch.save({"filters.weight": torch.ones(1)}, path.with_suffix(".pt"))
    message = refusal(tmp_path)
    assert f"the weights of {path.with_suffix('.pt')} do not fit the class in model.py" in message
    assert 'Missing key(s) in state_dict: "filters.bias"' in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (TWO_CLASSES, "or several of which one is called 'Model'"),
        ("import torch\n", "must have one subclass of torch.nn.Module"),
        ("import no_such_module\n", "raised ModuleNotFoundError: No module named 'no_such_module'"),
        (SOURCE.replace("def __init__(self)", "def __init__(self, size)"), "take no arguments"),
    ],
    ids=["two classes", "no class", "import", "arguments"],
)
def test_unusable_source_is_refused(tmp_path, source, message):
    save(tmp_path, source)
    assert message in refusal(tmp_path)


def test_incomplete_configuration_names_the_arguments(tmp_path):
    save(tmp_path)
    assert "'input' (image) and 'output' (OUTPUT__0, ...: several)" in refusal(tmp_path, "max_batch_size: 4")


# --- pickles --------------------------------------------------------------------------------------------------------


def test_pickled_weights_need_permission(tmp_path):
    path = save(tmp_path)
    torch.save(trained_digits().module, path.with_suffix(".pt"))
    message = refusal(tmp_path)
    assert "unpickling executes the code that a pickle contains" in message
    assert "--backend-config=pytorch,allow-pickle=true" in message


def test_pickled_module_is_served_with_permission(tmp_path):
    path = tmp_path / "m" / "1" / "model.pt"
    path.parent.mkdir(parents=True)
    torch.save(trained_digits().module, path)
    assert "unpickling executes" in refusal(tmp_path)
    with load(tmp_path, backend_config=PICKLES) as model:
        check_digits(model)


def test_permission_is_no_parameter_of_models(tmp_path):
    path = tmp_path / "m" / "1" / "model.pt"
    path.parent.mkdir(parents=True)
    torch.save(trained_digits().module, path)
    own = 'parameters { key: "allow-pickle" value { string_value: "true" } }'
    assert "unpickling executes" in refusal(tmp_path, CONFIG + own)


# --- torch.compile --------------------------------------------------------------------------------------------------


def compiled(text):
    escaped = text.replace('"', '\\"')
    key = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
    return f'{CONFIG} parameters {{ key: "{key}" value {{ string_value: "{escaped}" }} }}'


def test_compiled_module_has_the_same_results(tmp_path):
    save(tmp_path)
    with load(tmp_path, compiled('{"backend": "eager", "dynamic": true}')) as model:
        check_digits(model)


@pytest.mark.parametrize("text", ["yes", "[]", '{"model": 1}'])
def test_wrong_compile_parameters_are_refused(tmp_path, text):
    save(tmp_path)
    assert "expected a JSON object with some of fullgraph, dynamic" in refusal(tmp_path, compiled(text))


# --- results --------------------------------------------------------------------------------------------------------


def test_results_that_are_no_tensors_are_named(tmp_path):
    save(tmp_path, SOURCE + "\n\nclass Model(Digits):\n    def forward(self, image):\n        return 5\n")
    with load(tmp_path) as model, pytest.raises(ModelError, match="returned a int for output 'OUTPUT__0'"):
        model.infer({"INPUT__0": trained_digits().images[:1].numpy()})


def test_archives_do_not_need_the_class(tmp_path):
    save_torchscript(trained_digits().module, save(tmp_path).with_suffix(".pt"))
    with load(tmp_path) as model:
        check_digits(model)

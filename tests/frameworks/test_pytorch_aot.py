"""AOTInductor packages. Compiling one takes twenty seconds and a C++ compiler."""

import json
import zipfile

import numpy as np
import pytest
import torch

from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.torch_digits import CONFIG, trained_digits


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The classifier of digits, compiled for any number of rows."""
    digits = trained_digits()
    path = tmp_path_factory.mktemp("models") / "m" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    rows = torch.export.Dim("rows", min=1, max=32)
    exported = torch.export.export(digits.module, (digits.images[:2],), dynamic_shapes=({0: rows},))
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # The kernels have the usual level.
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=quick)
    return path.parent.parent


def load(directory, config=CONFIG):
    return BackendModel(PyTorchBackend(), directory, config=f'name: "m" backend: "pytorch" {config}')


def refusal(directory, config=CONFIG):
    with pytest.raises(InferError) as caught:
        load(directory, config)
    return caught.value.message


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("name", ["INPUT__0", "ARGS[0]"])
def test_probabilities_equal_pytorch(directory, rows, name):
    digits = trained_digits()
    with load(directory, CONFIG.replace("INPUT__0", name).replace("OUTPUT__0", "RESULT")) as model:
        found = model.infer({name: digits.images[:rows].numpy()})["RESULT"]
    np.testing.assert_allclose(found, digits.probabilities(rows), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1, 8, 8", "1, 8, 9"), "write dims: [1,8,8] in config.pbtxt"),
        (("TYPE_FP32 dims: [ 1,", "TYPE_FP64 dims: [ 1,"), "write data_type: TYPE_FP32"),
    ],
)
def test_contradicting_inputs_are_refused(directory, change, message):
    assert message in refusal(directory, CONFIG.replace(*change))


def test_shapes_that_would_be_misread_are_refused(directory):
    """Compiled code does not check: it would read beyond the end of the tensor."""
    with (
        load(directory, CONFIG.replace("1, 8, 8", "1, 8, -1")) as model,
        pytest.raises(ModelError, match=r"has shape \[2, 1, 8, 5\], but the package is compiled for \[\w+=2,1,8,8\]"),
    ):
        model.infer({"INPUT__0": np.zeros((2, 1, 8, 5), np.float32)})


def test_package_for_a_gpu_names_the_device(directory, tmp_path):
    path = tmp_path / "m" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(directory / "1" / "model.pt2") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("_metadata.json"):
                content = json.dumps({**json.loads(content), "AOTI_DEVICE_KEY": "cuda"}).encode()
            target.writestr(name, content)
    assert "is compiled for device 'cuda' and its instance is on 'cpu'" in refusal(tmp_path / "m")


def test_incomplete_configuration_names_the_inputs(directory):
    assert "'input' (ARGS[0]) and 'output' (OUTPUT__0, ...: 1)" in refusal(directory, "max_batch_size: 4")

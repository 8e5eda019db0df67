"""A convolutional classifier of scikit-learn's digits in PyTorch, and the files of tests with PyTorch models."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from support import digits_module

CONFIG = """
max_batch_size: 16 dynamic_batching { }
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""

SOURCE = Path(digits_module.__file__).read_text()


class TrainedDigits(NamedTuple):
    """The classifier and images that it was not trained on."""

    module: Any
    images: Any
    """[n, 1, 8, 8], 0 to 1."""
    labels: Any

    def probabilities(self, count: int) -> Any:
        """Return what PyTorch itself answers for the first images, as an array."""
        with torch.no_grad():
            return self.module(self.images[:count]).numpy()


@cache
def trained_digits() -> TrainedDigits:
    """Train the classifier, in about two seconds."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    targets = torch.tensor(labels)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = digits_module.Digits()
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(module(images[:1500]).log(), targets[:1500]).backward()
        optimizer.step()
    return TrainedDigits(module.eval(), images[1500:], targets[1500:])


def save_torchscript(module: Any, path: Path) -> Path:
    """Write the archive of a module, scripted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(path))
    return path


def save_exported(module: Any, path: Path, sample: Any, max_rows: int | None = 32) -> Path:
    """Write the archive of torch.export of a module with one argument, whose first dimension is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = torch.export.Dim("rows", min=1, max=max_rows)
    torch.export.save(torch.export.export(module, (sample,), dynamic_shapes=({0: rows},)), path)
    return path


def save_module(source: str, module: Any, path: Path) -> Path:
    """Write `model.py`, and the state dict beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    torch.save(module.state_dict(), path.with_suffix(".pt"))
    return path


def write_config(path: Path, config: str) -> Path:
    """Write `config.pbtxt` of the model with the file `path`, and return the model's directory."""
    directory = path.parent.parent
    (directory / "config.pbtxt").write_text(f'name: "{directory.name}"\nbackend: "pytorch" {config}')
    return directory

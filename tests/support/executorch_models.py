"""Programs of ExecuTorch for tests. Each is exported once per process."""

import contextlib
import io
from functools import cache
from typing import Any

import torch

from support.digits_classifier import digits_classifier


class Digits(torch.nn.Module):
    """The digits classifier of the tests."""

    def __init__(self) -> None:
        super().__init__()
        digits = digits_classifier()
        self.hidden = torch.nn.Linear(64, 32)
        self.last = torch.nn.Linear(32, 10)
        for layer, weights, bias in (
            (self.hidden, digits.hidden_weights, digits.hidden_bias),
            (self.last, digits.weights, digits.bias),
        ):
            layer.weight.data = torch.from_numpy(weights.T.copy())
            layer.bias.data = torch.from_numpy(bias)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.last(torch.relu(self.hidden(image))), 1)


class Add(torch.nn.Module):
    """Two inputs and two outputs, of fixed shapes."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> Any:
        return left + right, left - right


@cache
def digits_program(max_rows: int = 0, *, has_xnnpack: bool = False) -> bytes:
    """Return the classifier for up to `max_rows` rows, or for exactly 3."""
    dim = torch.export.Dim("rows", min=1, max=max_rows or 2)
    return export(Digits(), (torch.zeros(3, 64),), ({0: dim},) if max_rows else None, has_xnnpack=has_xnnpack)


@cache
def add_program() -> bytes:
    # Two tensors: one tensor twice would be exported as one input.
    return export(Add(), (torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)))


def export(module: Any, example: Any, shapes: Any = None, *, has_xnnpack: bool = False) -> bytes:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.export.export(module.eval(), example, dynamic_shapes=shapes)
        partitioners = [XnnpackPartitioner()] if has_xnnpack else None
        return bytes(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer)

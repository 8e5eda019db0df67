"""AOTInductor packages: `model.pt2` of `torch._inductor.aoti_compile_and_package`.

The compiled code does not check its inputs: a wrong shape reads memory that is not the tensor's. PyTorch's own check
(AOTI_RUNTIME_CHECK_INPUTS) refuses batches of one row. So the expected datatypes and shapes are read from the source
of the package, and every new combination of shapes is compared with them before it runs.
"""

import json
import logging
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.pytorch.library import pytree, torch
from naiad.backend.pytorch.naming import REQUIRED, Slot
from naiad.backend.pytorch.programs.exported import argument_names, result_names
from naiad.backend.pytorch.programs.program import Program, cannot_load
from naiad.backend.pytorch.tensors import DATATYPES
from naiad.backend.signature import TensorSignature
from naiad.core.errors import invalid_argument, unsupported

_log = logging.getLogger(__name__)

MAX_SHAPES = 1024
"""Checked combinations of shapes that a program remembers."""


def load_package(context: ModelContext, path: Path, device: str) -> Program:
    """Load a package on the device that it was compiled for. Raises InferError."""
    device = _check_device(context, path, device)
    try:
        index = int(device.partition(":")[2] or -1)
        loader = torch._inductor.aoti_load_package(str(path), device_index=index).loader
        in_spec, out_spec = [pytree.treespec_loads(spec) for spec in loader.get_call_spec()]
    except Exception as error:  # PyTorch raises classes of several libraries
        fix = f"compile it again on this kind of machine, with torch {torch.__version__}"
        raise cannot_load(context, path, error, fix) from error
    signatures = read_signatures(path)
    if not signatures:
        _log.warning("model '%s': %s has no source, so the shapes of its inputs are not checked", context.name, path)
    names = argument_names(in_spec)
    arguments = [Slot((alias,), REQUIRED, tensor=signatures.get(position)) for position, alias in enumerate(names)]
    guard = ShapeGuard(context.name, [signatures.get(position) for position in range(len(names))])

    def call(tensors: Sequence[Any]) -> Any:
        guard.check(tensors)
        return loader.boxed_run(list(tensors))

    return Program(call, arguments, [Slot(each) for each in result_names(out_spec)])


def _check_device(context: ModelContext, path: Path, device: str) -> str:
    compiled = _read_metadata(path).get("AOTI_DEVICE_KEY", "cpu")
    if device and device.partition(":")[0] != compiled:
        kind = "KIND_GPU" if compiled == "cuda" else "KIND_CPU"
        raise unsupported(
            f"model '{context.name}': {path} is compiled for device '{compiled}' and its instance is on '{device}'; "
            f"use instances of {kind}, or compile the model for '{device.partition(':')[0]}'"
        )
    return device


def _read_metadata(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("_metadata.json")), None)
        found: dict[str, str] = {} if name is None else json.loads(archive.read(name))
        return found


def read_signatures(path: Path) -> dict[int, TensorSignature]:
    """Return datatype and shape of each input by its position, as the package's source has them; empty without it."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".cpp") and "kernel" not in name]
        source = "\n".join(archive.read(name).decode(errors="replace") for name in names)
    found = {}
    for position, name in re.findall(r'inputs_info_\[(\d+)\]\.name = "(\w+)"', source):
        dtype = re.search(rf"\b{name}_expected_dtype = aoti_torch_dtype_(\w+)\(\)", source)
        sizes = re.search(rf"assert_size_stride\({name}, \{{([^}}]*)\}}", source)
        if dtype is not None and sizes is not None:
            dims = tuple(_dim(text.strip()) for text in sizes.group(1).split(",") if text.strip())
            datatype = DATATYPES.get(getattr(torch, dtype.group(1), None))
            public = f"INPUT__{position}"
            found[int(position)] = TensorSignature(public, datatype, dims, dtype.group(1))
    return found


def _dim(text: str) -> int | str | None:
    if re.fullmatch(r"\d+L?", text):
        return int(text.rstrip("L"))
    return text if text.isidentifier() else None


class ShapeGuard:
    """Compares the shapes of inputs with those that the package was compiled for."""

    def __init__(self, model: str, signatures: Sequence[TensorSignature | None]) -> None:
        self._model = model
        self._signatures = signatures
        self._checked: set[tuple[Any, ...]] = set()

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise InferError(INVALID_ARG) for shapes that the compiled code would misread."""
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes in self._checked:
            return
        sizes: dict[str, int] = {}
        for signature, shape in zip(self._signatures, shapes, strict=True):
            if signature is not None:
                self._compare(signature, shape, sizes)
        if len(self._checked) < MAX_SHAPES:
            self._checked.add(shapes)

    def _compare(self, signature: TensorSignature, shape: Sequence[int], sizes: dict[str, int]) -> None:
        dims = signature.dims or ()
        fits = len(dims) == len(shape)
        for dim, size in zip(dims, shape, strict=False):
            expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            fits = fits and expected in (size, None)
        if not fits:
            wanted = ",".join(f"{dim}={sizes[dim]}" if dim in sizes else str(dim) for dim in dims)
            raise invalid_argument(
                f"model '{self._model}': {signature.name} has shape {list(shape)}, but the package is compiled for "
                f"[{wanted}]; send this shape, or compile the model with dynamic dimensions"
            )

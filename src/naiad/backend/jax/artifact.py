"""A serialised function of `jax.export`: its tensors, its platforms, and its compilation for a device."""

import contextlib
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, find_model_file
from naiad.backend.jax.library import dlpack, export, jax
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.config.backends import filenames_of
from naiad.core.datatype import from_numpy
from naiad.core.device_tensor import Device
from naiad.core.errors import excerpt, unsupported

GPU_PLATFORMS = frozenset({"cuda", "rocm"})


class Artifact(ModelFile):
    """The file of a model version."""

    def __init__(self, context: ModelContext) -> None:
        """Read the file. Raises InferError(INVALID_ARG)."""
        super().__init__(context, find_model_file(context, filenames_of("jax")))
        content = self.path.read_bytes()
        if not content:
            raise self.error("is empty; copy it again")
        try:
            self.exported = export.deserialize(bytearray(content))
        except Exception as error:  # of flatbuffers and of JAX: damaged files fail with any exception
            raise self.error(
                f"cannot be read by JAX {jax.__version__}: {type(error).__name__}: {excerpt(str(error))}; it is "
                "truncated, of another format or of an incompatible version: write it again with "
                "jax.export.export(...)(...).serialize()"
            ) from error
        if self.exported.nr_devices != 1:
            raise self.error(f"was exported for {self.exported.nr_devices} devices; export the function for one")
        self.inputs = leaf_names(self.exported.in_tree, "input", depth=2)
        self.outputs = leaf_names(self.exported.out_tree, "output", depth=0)

    @property
    def signature(self) -> ModelSignature:
        """The tensors by name; free dimensions have the names that they have in JAX."""
        exported = self.exported
        return ModelSignature(
            "JAX",
            {name: _tensor(name, aval) for name, aval in zip(self.inputs, exported.in_avals, strict=True)},
            {name: _tensor(name, aval) for name, aval in zip(self.outputs, exported.out_avals, strict=True)},
            max_rows=None if self.has_batch_dimension else 0,
        )

    @property
    def has_batch_dimension(self) -> bool:
        """Whether the first dimension of all tensors is the same free one."""
        avals = [*self.exported.in_avals, *self.exported.out_avals]
        firsts = {str(aval.shape[0]) if aval.shape else "" for aval in avals}
        return len(firsts) == 1 and next(iter(firsts)).isidentifier()

    def compile(self, kind: str, device_id: int) -> Callable[..., Sequence[Any]]:
        """Return the function on a device: arrays in the order of `inputs` to arrays in the order of `outputs`.

        Inputs may also be DLPack tensors on the device. Outputs at the positions in the second argument stay there.
        XLA compiles it again for each combination of shapes. Raises InferError(UNSUPPORTED) for an artefact of
        another platform.
        """
        exported = self.exported
        is_gpu = kind == "KIND_GPU"
        if not (GPU_PLATFORMS & {*exported.platforms} if is_gpu else "cpu" in exported.platforms):
            wanted = "cuda" if is_gpu else "cpu"
            raise self.error(
                f"was exported for {', '.join(exported.platforms)}, but the instance is of {kind}; export it with "
                f"platforms=['{wanted}', ...], or change the kind in 'instance_group'",
                unsupported,
            )
        device = jax.devices("gpu" if is_gpu else "cpu")[device_id if is_gpu else 0]

        def call(*leaves: Any) -> Any:
            args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
            return jax.tree_util.tree_leaves(exported.call(*args, **kwargs))

        compiled = jax.jit(call)
        precision = _wide_types if self._is_wide() else contextlib.nullcontext

        def run(arrays: Sequence[Any], staying: Set[int] = frozenset()) -> Sequence[Any]:
            with precision(), jax.default_device(device):
                given = [a if isinstance(a, np.ndarray) else dlpack.from_dlpack(a) for a in arrays]
                results = enumerate(compiled(*given))
                return [each.block_until_ready() if i in staying else np.asarray(each) for i, each in results]

        return run

    def _is_wide(self) -> bool:
        avals = (*self.exported.in_avals, *self.exported.out_avals)
        return any(str(aval.dtype) in ("float64", "int64", "uint64") for aval in avals)


def dlpack_device(kind: str, device_id: int) -> Device | None:
    """Return a device as DLPack numbers it; None for the CPU."""
    if kind != "KIND_GPU":
        return None
    place, number = jax.device_put(np.zeros(1, np.float32), jax.devices("gpu")[device_id]).__dlpack_device__()
    return int(place), int(number)


def leaf_names(tree: Any, prefix: str, *, depth: int) -> list[str]:
    """Return a name for each leaf of a tree: its keys, joined by dots, without the first `depth` keys.

    Leaves without a key, and all leaves if two would have one name, are called `prefix_0`, `prefix_1`, ...
    """
    numbered = [f"{prefix}_{index}" for index in range(tree.num_leaves)]
    filled = jax.tree_util.tree_unflatten(tree, numbered)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(filled)[0]]
    names = []
    for path, number in zip(paths, numbered, strict=True):
        # The first two keys of an argument are: positional (0) or by keyword (1), and its position or keyword.
        keys = [_key(key) for key in (path[1:] if depth and _key(path[0]) == "1" else path[depth:])]
        names.append(number if all(key.isdecimal() for key in keys) else ".".join(keys))
    return names if len({*names}) == len(names) else numbered


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _tensor(name: str, aval: Any) -> TensorSignature:
    dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in aval.shape)
    try:
        datatype = from_numpy(np.dtype(aval.dtype))
    except TypeError:  # random keys have types of JAX's own
        datatype = None
    return TensorSignature(name, datatype, dims, str(aval.dtype))


def _wide_types() -> Any:
    """Return the context in which JAX has types of 64 bits, for this thread."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()

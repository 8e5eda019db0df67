"""A job without a version uses the one that serves, for all of its rows."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, not_found, unavailable
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array
from naiad.tools.predict import PredictJob, model_host, predict
from naiad.tools.predict.model_host import open_endpoint
from support.batch_parts import Doubling

URL = "http://localhost:1"


class Server(Doubling):
    """A server whose model has versions; it asks and answers as `naiad.client.Client`."""

    def __init__(self, versions: Sequence[str], stable: str = "") -> None:
        super().__init__()
        self.versions = versions
        self.stable = stable
        """The name `stable` means it; empty for a server without this name."""
        self.has_paths = True
        self.asked: list[str] = []
        """Version of each request."""

    async def model_metadata(self, model: str, version: str) -> ModelMetadata:
        named = {"stable": self.stable}.get(version, version)
        if named and (named not in self.versions or not self.has_paths):
            raise not_found(f"version {version} is not found")
        found = await super().metadata()
        return ModelMetadata("m", [named] if named else self.versions, "", found.inputs, found.outputs)

    async def model_config(self, model: str, version: str) -> ModelConfig:
        return await super().config()

    async def infer(  # type: ignore[override]  # that of a client
        self, model: str, inputs: Mapping[str, Array], *, version: str, outputs: Iterable[str]
    ) -> Mapping[str, Array]:
        await self.model_metadata(model, version)
        self.asked.append(version)
        return await super().infer(inputs, outputs)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    def use_server(server: Server) -> None:
        monkeypatch.setattr(model_host, "Client", lambda url, headers: contextlib.nullcontext(server))

    return use_server


@pytest.fixture
def job(tmp_path: Path) -> PredictJob:
    (tmp_path / "in.jsonl").write_text('{"X": [1, 2]}\n' * 12)
    return PredictJob(URL, "m", [str(tmp_path / "in.jsonl")], str(tmp_path / "out.jsonl"), outputs=("Y",))


@pytest.mark.parametrize(
    ("versions", "stable", "expected"),
    [
        (["1"], "", "1"),
        (["9", "10"], "", "10"),
        (["1", "2"], "1", "1"),
        (["1", "2"], "2", "2"),
        ([], "", ""),
        (["v1"], "", ""),
    ],
)
def test_all_rows_are_for_the_version_that_serves(
    use, job: PredictJob, versions: list[str], stable: str, expected: str
) -> None:
    server = Server(versions, stable)
    use(server)
    assert predict(job).rows == 12
    assert server.asked == [expected] * 3


def test_server_without_paths_of_versions(use, job: PredictJob) -> None:
    server = Server(["1"])
    server.has_paths = False
    use(server)
    assert predict(job).rows == 12
    assert set(server.asked) == {""}


def test_model_that_is_replaced_ends_the_job(use, job: PredictJob, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(["1"])
    use(server)
    infer = server.infer

    async def infer_and_replace(*arguments, **named):
        found = await infer(*arguments, **named)
        server.versions = ["2"]
        return found

    monkeypatch.setattr(server, "infer", infer_and_replace)
    with pytest.raises(InferError, match="version 1 is not found"):
        predict(job)
    with pytest.raises(InferError, match='version that serves was "1" and is "2"; add --restart'):
        predict(job)


def test_server_that_is_away_has_no_other_version(use, job: PredictJob, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(["1"])
    use(server)
    metadata = server.model_metadata

    async def away(model: str, version: str) -> ModelMetadata:
        if version:
            raise unavailable("the server is away")
        return await metadata(model, version)

    monkeypatch.setattr(server, "model_metadata", away)
    with pytest.raises(InferError, match="is away"):
        predict(job)


def test_endpoint_that_follows_versions_names_none(use, job: PredictJob) -> None:
    server = Server(["1", "2"], "1")
    use(server)

    async def served_versions() -> Sequence[str]:
        async with open_endpoint(job, follows_versions=True) as endpoint:
            return (await endpoint.metadata()).versions

    assert asyncio.run(served_versions()) == ["1", "2"]

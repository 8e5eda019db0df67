"""Repository agents: what they are called with, when, and what becomes of what they bring."""

import hashlib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from naiad.repository.agents.api import AgentContext, RepositoryAgent
from naiad.repository.agents.chain import ENTRY_POINT_GROUP, AgentChain, AgentRegistry
from naiad.repository.stores.store import LocalStore, ModelEntry

CALLS: list[str] = []


class Recorder(RepositoryAgent):
    name = "recorder"

    def load(self, context: AgentContext) -> Path | None:
        CALLS.append(f"load {context.parameters['as']} {context.model_dir.name}")
        if context.parameters.get("does") == "refuse":
            raise ValueError("not today")
        if context.parameters.get("does") == "lie":
            return Path("/nothing")
        if context.parameters.get("does") == "move":
            directory = context.new_directory()
            (directory / "1").mkdir()
            (directory / "config.pbtxt").write_text("backend: 'moved'")
            return directory
        return None

    def load_complete(self, context: AgentContext) -> None:
        CALLS.append(f"complete {context.parameters['as']}")

    def load_failed(self, context: AgentContext) -> None:
        CALLS.append(f"failed {context.parameters['as']}")
        raise ValueError("that, too")

    def unload(self, context: AgentContext) -> None:
        CALLS.append(f"unload {context.parameters['as']}")

    def unload_complete(self, context: AgentContext) -> None:
        CALLS.append(f"unloaded {context.parameters['as']}")


NO_AGENT = object()


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    CALLS.clear()
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"hello")
    (tmp_path / "m" / "config.pbtxt").touch()
    return LocalStore(tmp_path).open_model("m")


@pytest.fixture
def registry() -> AgentRegistry:
    here = __name__
    return AgentRegistry(
        {
            "recorder": EntryPoint("recorder", f"{here}:Recorder", ENTRY_POINT_GROUP),
            "gone": EntryPoint("gone", f"{here}:Nothing", ENTRY_POINT_GROUP),
            "wrong": EntryPoint("wrong", f"{here}:NO_AGENT", ENTRY_POINT_GROUP),
        }
    )


def config(*agents: tuple[str, dict[str, str]]) -> ModelConfig:
    made = ModelConfig(name="m")
    for name, parameters in agents:
        made.model_repository_agents.agents.add(name=name, parameters=parameters)
    return made


def refused(registry: AgentRegistry, entry: ModelEntry, *agents: tuple[str, dict[str, str]]) -> InferError:
    with pytest.raises(InferError) as caught:
        AgentChain(registry, entry, config(*agents))
    return caught.value


def test_agents_are_called_in_order_then_reversed(registry: AgentRegistry, entry: ModelEntry) -> None:
    chain = AgentChain(registry, entry, config(("recorder", {"as": "a"}), ("recorder", {"as": "b"})))
    assert chain.entry is entry
    chain.load_complete()
    chain.unload()
    assert chain.stop(0.0)
    loads = ["load a m", "load b m"]
    assert [*loads, "complete b", "complete a", "unload a", "unload b", "unloaded b", "unloaded a"] == CALLS


def test_agent_files_are_loaded_and_removed(registry: AgentRegistry, entry: ModelEntry) -> None:
    chain = AgentChain(registry, entry, config(("recorder", {"as": "a", "does": "move"}), ("recorder", {"as": "b"})))
    directory = chain.entry.model_dir
    assert directory != entry.model_dir
    assert directory.stat().st_mode & 0o777 == 0o700
    assert f"load b {directory.name}" == CALLS[-1]
    assert dict(chain.entry.version_dirs) == {1: directory / "1"}
    assert chain.entry.config_path == directory / "config.pbtxt"
    chain.load_complete()
    assert directory.exists()
    chain.stop(0.0)
    assert not directory.exists()


def test_a_configuration_that_a_command_gave_stays(registry: AgentRegistry, entry: ModelEntry) -> None:
    preset = ModelConfig(name="m", backend="given")
    given = ModelEntry("m", entry.model_dir, entry.version_dirs, None, preset)
    chain = AgentChain(registry, given, config(("recorder", {"as": "a", "does": "move"})))
    assert chain.entry.config_path is None
    assert chain.entry.preset == preset
    chain.load_failed()


def test_one_that_refuses_ends_it_and_leaves_nothing(registry: AgentRegistry, entry: ModelEntry) -> None:
    error = refused(
        registry,
        entry,
        ("recorder", {"as": "a", "does": "move"}),
        ("recorder", {"as": "b", "does": "refuse"}),
        ("recorder", {"as": "c"}),
    )
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == "repository agent 'recorder' refuses model 'm': ValueError: not today"
    assert [call.partition(" ")[0] for call in CALLS] == ["load", "load", "failed", "failed"]
    assert CALLS[-2:] == ["failed b", "failed a"]


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("chekcsum", "unknown repository agent 'chekcsum', did you mean 'checksum'?"),
        ("gone", f"importing {__name__}:Nothing failed"),
        ("wrong", "is no subclass of RepositoryAgent"),
    ],
)
def test_agents_that_are_none(registry: AgentRegistry, entry: ModelEntry, agent: str, text: str) -> None:
    assert text in refused(registry, entry, (agent, {})).message


def test_a_directory_that_is_none(registry: AgentRegistry, entry: ModelEntry) -> None:
    assert (
        "/nothing, which is no directory"
        in refused(registry, entry, ("recorder", {"as": "a", "does": "lie"})).message
    )


DIGESTS = {"MD5": hashlib.md5(b"hello").hexdigest(), "SHA256": hashlib.sha256(b"hello").hexdigest()}


class TestChecksum:
    @pytest.mark.parametrize("algorithm", ["MD5", "SHA256"])
    @pytest.mark.parametrize("spelling", [str.lower, str.upper, lambda text: f" {text}\n"])
    def test_a_file_with_the_digest(
        self, registry: AgentRegistry, entry: ModelEntry, algorithm: str, spelling: Callable[[str], str]
    ) -> None:
        parameters = {f"{algorithm}:1/model.onnx": spelling(DIGESTS[algorithm])}
        assert AgentChain(registry, entry, config(("checksum", parameters))).entry is entry

    @pytest.mark.parametrize(
        ("parameters", "text"),
        [
            ({}, "has no parameters"),
            ({"1/model.onnx": "0"}, "expected 'MD5:<file>' or 'SHA256:<file>'"),
            ({"CRC:1/model.onnx": "0"}, "expected 'MD5:<file>' or 'SHA256:<file>'"),
            ({"MD5:": "0"}, "must lie in the model's directory"),
            ({"MD5:../m/1/model.onnx": "0"}, "must lie in the model's directory"),
            ({"MD5:/etc/passwd": "0"}, "must lie in the model's directory"),
            ({"MD5:1/nothing": "0"}, "1/nothing cannot be taken: No such file or directory"),
            ({"MD5:1": "0"}, "cannot be taken: Is a directory"),
            ({"MD5:1/model.onnx": "0"}, "model.onnx is not '0' of the configuration"),
            ({"SHA256:1/model.onnx": DIGESTS["MD5"]}, f"model.onnx is not '{DIGESTS['MD5']}'"),
        ],
    )
    def test_what_is_refused(
        self, registry: AgentRegistry, entry: ModelEntry, parameters: dict[str, str], text: str
    ) -> None:
        message = refused(registry, entry, ("checksum", parameters)).message
        assert text in message
        assert DIGESTS["SHA256"] not in message

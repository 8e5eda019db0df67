"""What is known of models on demand while they are not loaded."""

from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelKey
from naiad.repository.control.on_demand.known_models import KnownModels, directory_bytes


def test_name_of_two_models_is_ambiguous():
    known = KnownModels()
    first, second = ModelKey("one", "m"), ModelKey("two", "m")
    for key in (first, second):
        known.know(key, (1,), ModelConfig())
    assert known.find("m") is None
    known.forget(first)
    assert known.find("m") == second
    known.forget(second)
    assert known.find("m") is None


def test_new_configuration_replaces_the_kind():
    known, decoupled = KnownModels(), ModelConfig()
    decoupled.model_transaction_policy.decoupled = True
    known.know("m", (1, 2), decoupled)
    assert known.is_decoupled("m")
    known.know("m", (3,), ModelConfig())
    assert (known.is_decoupled("m"), known.versions_of("m")) == (False, (3,))


def test_unknown_model_is_forgotten_silently():
    known = KnownModels()
    known.forget("m")
    assert known.versions_of("m") == ()


def test_size_of_a_missing_directory_is_nothing(tmp_path: Path):
    assert directory_bytes(tmp_path / "nothing") == 0
    (tmp_path / "a").write_bytes(b"1234")
    assert directory_bytes(tmp_path) == directory_bytes(tmp_path / "a") == 4


def test_size_counts_files_below_and_linked_files_once(tmp_path: Path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "a" / "b").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "one").write_bytes(b"1")
    (root / "a" / "b" / "deep").write_bytes(b"22")
    (elsewhere / "weights").write_bytes(b"4444")
    (root / "link").symlink_to(elsewhere / "weights")
    (root / "nowhere").symlink_to(elsewhere / "missing")
    # Not into linked directories, which may lead back here.
    (root / "a" / "back").symlink_to(root)
    assert directory_bytes(root) == 1 + 2 + 4
    (tmp_path / "linked_root").symlink_to(root)
    assert directory_bytes(tmp_path / "linked_root") == 1 + 2 + 4

import os
from pathlib import Path

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.open_repository import open_path
from naiad.repository.stores.store import LocalStore, SingleModelStore, check_model_name, list_version_dirs


def make_model(root: Path, name: str, *, config: bool = True, versions: tuple[str, ...] = ("1",)) -> Path:
    model_dir = root / name
    for version in versions:
        (model_dir / version).mkdir(parents=True)
        (model_dir / version / "model.onnx").write_bytes(b"")
    if config:
        (model_dir / "config.pbtxt").write_text(f'name: "{name}"\n')
    return model_dir


def test_local_store_lists_visible_directories_only(tmp_path: Path) -> None:
    make_model(tmp_path, "b")
    make_model(tmp_path, "a")
    (tmp_path / "..data").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("")
    assert LocalStore(tmp_path).list_models() == ["a", "b"]


def test_local_store_follows_links_to_models(tmp_path: Path) -> None:
    target = make_model(tmp_path / "elsewhere", "m")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "linked").symlink_to(target)
    assert LocalStore(tmp_path / "repository").list_models() == ["linked"]


def test_local_store_describes_a_model(tmp_path: Path) -> None:
    model_dir = make_model(tmp_path, "m", versions=("1", "10", "2"))
    entry = LocalStore(tmp_path).open_model("m")
    assert entry.name == "m"
    assert entry.model_dir == model_dir
    assert list(entry.version_dirs) == [1, 2, 10]
    assert entry.config_path == model_dir / "config.pbtxt"


def test_local_store_prefers_named_configuration(tmp_path: Path) -> None:
    with_custom = make_model(tmp_path, "a")
    make_model(tmp_path, "b")
    (with_custom / "configs").mkdir()
    (with_custom / "configs" / "h100.pbtxt").write_text("")
    store = LocalStore(tmp_path, config_name="h100")
    assert store.open_model("a").config_path == with_custom / "configs" / "h100.pbtxt"
    assert store.open_model("b").config_path == tmp_path / "b" / "config.pbtxt"
    assert list(store.open_model("a").version_dirs) == [1]


def test_missing_repository_names_the_path_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(InferError, match="restore the directory") as caught:
        LocalStore(tmp_path / "nothing").list_models()
    assert caught.value.code is ErrorCode.INTERNAL
    assert str(tmp_path / "nothing") in caught.value.message


def test_repository_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(InferError, match="not a directory"):
        LocalStore(tmp_path / "f").list_models()


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../a", "a\\b", "a\0b"])
def test_model_names_that_are_paths_are_refused(name: str) -> None:
    with pytest.raises(InferError) as caught:
        check_model_name(name)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_unknown_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        LocalStore(tmp_path).open_model("m")
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(("file", "backend"), [("resnet.onnx", "onnxruntime"), ("pre.process.py", "python")])
def test_bare_file_is_model_named_after_stem(tmp_path: Path, file: str, backend: str) -> None:
    path = tmp_path / file
    path.write_bytes(b"")
    store = open_path(path)
    name = Path(file).stem
    assert store.list_models() == [name]
    entry = store.open_model(name)
    assert dict(entry.version_dirs) == {1: tmp_path}
    assert entry.config_path is None
    assert (entry.preset.backend, entry.preset.default_model_filename) == (backend, file)
    with pytest.raises(InferError):
        store.open_model("other")


def test_unknown_file_kind_error_names_known_kinds(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InferError, match=r"known suffixes: .*\.onnx, .*\.py"):
        open_path(tmp_path / "model.bin")


def test_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InferError, match="no such file or directory"):
        open_path(tmp_path / "model.onnx")


@pytest.mark.parametrize("config", [True, False])
def test_model_directory_is_distinguished_from_repository(tmp_path: Path, config: bool) -> None:
    model_dir = make_model(tmp_path, "m", config=config)
    single = open_path(model_dir)
    assert isinstance(single, SingleModelStore)
    assert single.list_models() == ["m"]
    assert isinstance(open_path(tmp_path), LocalStore)


def test_directory_with_model_file_is_one_model(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "model.onnx").write_bytes(b"")
    entry = open_path(tmp_path / "bert").open_model("bert")
    assert dict(entry.version_dirs) == {1: tmp_path / "bert"}


def test_repository_with_numeric_model_name_stays_repository(tmp_path: Path) -> None:
    make_model(tmp_path, "7", config=False)
    assert isinstance(open_path(tmp_path), LocalStore)


def test_entries_that_cannot_be_followed_fail_alone(tmp_path: Path) -> None:
    make_model(tmp_path, "good")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "long").symlink_to("x" * 300)
    (tmp_path / "dangling").symlink_to("nothing")
    store = LocalStore(tmp_path)
    assert store.list_models() == ["good", "long", "loop"]
    assert list(store.look()) == ["good", "long", "loop"]
    assert not store.look()["loop"].is_incomplete
    for name, reason in (("loop", "Too many levels of symbolic links"), ("long", "File name too long")):
        with pytest.raises(InferError, match=f"model '{name}': {tmp_path / name} cannot be read: {reason}"):
            store.open_model(name)


def test_repository_with_unreadable_links_opens(tmp_path: Path) -> None:
    make_model(tmp_path, "good")
    (tmp_path / "1").symlink_to("x" * 300)
    (tmp_path / "long").symlink_to("x" * 300)
    store = open_path(tmp_path)
    assert isinstance(store, LocalStore)
    assert store.list_models() == ["1", "good", "long"]


def test_version_that_cannot_be_followed_is_a_version(tmp_path: Path) -> None:
    model_dir = make_model(tmp_path, "m", versions=("1",))
    (model_dir / "2").symlink_to("2")
    assert list(list_version_dirs(model_dir)) == [1, 2]


def test_directory_of_file_systems_is_no_model(tmp_path: Path) -> None:
    make_model(tmp_path, "m")
    (tmp_path / "lost+found").mkdir()
    assert LocalStore(tmp_path).list_models() == ["m"]
    with pytest.raises(InferError, match="is not found in model repository"):
        LocalStore(tmp_path).open_model("lost+found")


def test_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).mkdir()
    store = LocalStore(tmp_path)
    assert store.list_models() == [r"caf\xe9"]
    with pytest.raises(InferError, match=r"model name 'caf\\xe9' .* not UTF-8.* rename the directory"):
        store.open_model(r"caf\xe9")

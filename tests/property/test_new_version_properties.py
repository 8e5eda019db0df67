"""A version that is added to any model is complete, or, if the body fails, leaves the repository as it was."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.repository.stores.new_version import NewVersion, added_version

NAMES = st.sampled_from(["labels.txt", "warmup", "extra.bin", "config.pbtxt"])
CONTENTS = st.binary(max_size=4)
MODELS = st.fixed_dictionaries(
    {"versions": st.sets(st.integers(0, 12), max_size=3), "shared": st.dictionaries(NAMES, CONTENTS, max_size=3)}
)


class BodyError(Exception):
    pass


def write(model, state):
    """Write a model; what is named like a directory is one."""
    for version in state["versions"]:
        (model / str(version)).mkdir(parents=True)
        (model / str(version) / "model.onnx").write_text(f"old {version}")
    for name, content in state["shared"].items():
        place(model / name, content)


def place(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix:
        path.write_bytes(content)
    else:
        path.mkdir()
        (path / "data").write_bytes(content)


def content_of(root):
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


def fail(repository, new):
    with added_version(repository, "m", new) as added:
        assert (added.path / "model.onnx").read_text() == "new"
        raise BodyError


@given(
    MODELS, st.dictionaries(NAMES.filter(lambda name: name != "config.pbtxt"), CONTENTS, max_size=3), st.booleans()
)
def test_version_is_added_or_taken_back(state, beside, fails):
    root = Path(tempfile.mkdtemp())
    try:
        repository, source = root / "models", root / "source"
        repository.mkdir()
        write(repository / "m", state)
        source.mkdir()
        (source / "model.onnx").write_text("new")
        for name, content in beside.items():
            place(root / "beside" / name, content)
        before = content_of(repository)
        new = NewVersion(
            {"model.onnx": source / "model.onnx"}, [root / "beside" / name for name in beside], 'backend: "new"'
        )
        if fails:
            with pytest.raises(BodyError):
                fail(repository, new)
            assert content_of(repository) == before
        else:
            with added_version(repository, "m", new) as added:
                pass
            assert added.version == max(state["versions"], default=0) + 1
            after = content_of(repository)
            assert after.pop(f"m/{added.version}/model.onnx") == b"new"
            assert after.pop("m/config.pbtxt") == b'backend: "new"'
            replaced = tuple(f"m/{name}" for name in beside)
            kept = {name: text for name, text in before.items() if not name.startswith((*replaced, "m/config.pbtxt"))}
            assert {name: text for name, text in after.items() if not name.startswith(replaced or ("-",))} == kept
        assert not [each for each in repository.iterdir() if each.name.startswith(".")]
        assert not (repository / "m/.uploading").exists()
    finally:
        shutil.rmtree(root)

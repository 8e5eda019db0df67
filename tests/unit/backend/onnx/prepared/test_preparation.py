"""Prepared forms of models: the same answers, never of another model, never a reason for a load to fail."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from naiad.backend.onnx.prepared import preparation, prepared_folder
from naiad.backend.onnx.prepared.known_digests import KnownDigests
from naiad.core.errors import InferError
from support import onnx_models
from support.backend_parts import infer, load_onnx, new_instance

SETTINGS = {"prepared-models-bytes": "1GB"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path / "cache"))
    preparation._open_folder.cache_clear()
    preparation._unwritable.clear()
    monkeypatch.setattr(preparation, "_digests", KnownDigests())
    yield tmp_path / "cache" / "onnx"
    preparation._open_folder.cache_clear()
    preparation._unwritable.clear()


def convolutions(seed: int = 0, size: int = 600) -> bytes:
    """A convolution, laid out for the processor, and layers with an odd number of bytes before their weights."""
    rng = np.random.default_rng(seed)
    weights = {
        "kernel": rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "odd": np.arange(7, dtype=np.uint8),
        "first": rng.standard_normal((16 * 8 * 8, size)).astype(np.float32),
        "second": rng.standard_normal((size, size)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["X", "kernel"], ["C"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["C"], ["R"]),
        helper.make_node("Flatten", ["R"], ["F"]),
        helper.make_node("MatMul", ["F", "first"], ["H"]),
        helper.make_node("MatMul", ["H", "second"], ["Y"]),
        helper.make_node("Identity", ["odd"], ["Z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", size]),
            helper.make_tensor_value_info("Z", TensorProto.UINT8, [7]),
        ],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


def answer(folder: Path, model: bytes | None, **fields: Any) -> list[bytes]:
    loaded, _ = load_onnx(folder, model, backend_config=SETTINGS, max_batch_size=0, **fields)
    instance = new_instance(loaded)
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    outputs = infer(instance, {"X": x})
    instance.close()
    loaded.close()
    return [outputs[name].tobytes() for name in sorted(outputs)]


def forms(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*") if path.is_dir() and path.name != "incoming"]


def test_each_load_opens_the_form(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = onnxruntime.InferenceSession

    def open_session(path: object, *rest: Any, **named: Any) -> Any:
        opened.append(str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    first = answer(tmp_path / "m", convolutions())
    (form,) = forms(cache)
    assert opened[1:] == [str(form / "model.onnx")], "what has written the form has its weights twice"
    opened.clear()
    assert answer(tmp_path / "m", None) == first
    assert opened == [str(form / "model.onnx")]
    shutil.rmtree(cache)
    monkeypatch.setattr(preparation, "_may_be_prepared", lambda *rest: False)
    assert answer(tmp_path / "m", None) == first


def test_form_that_cannot_be_opened_is_removed(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_open_form", lambda form, plan: None)
        first = answer(tmp_path / "m", convolutions())
        assert forms(cache) == []
    assert answer(tmp_path / "m", None) == first


def test_mapped_weights_are_aligned(tmp_path: Path, cache: Path) -> None:
    answer(tmp_path / "m", convolutions())
    (form,) = forms(cache)
    graph = onnx.load(form / "model.onnx", load_external_data=False).graph
    places = [{each.key: each.value for each in tensor.external_data} for tensor in graph.initializer]
    mapped = [place for place in places if place]
    assert len(mapped) == 2
    assert [int(place.get("offset", 0)) % 4096 for place in mapped] == [0, 0]


def test_instance_says_what_is_mapped(tmp_path: Path, cache: Path) -> None:
    loaded, _ = load_onnx(tmp_path / "m", convolutions(), backend_config=SETTINGS, max_batch_size=0)
    instance = new_instance(loaded)
    (form,) = forms(cache)
    assert instance.mapped_bytes == (form / "weights.bin").stat().st_size > 0
    instance.close()
    loaded.close()


def test_another_model_has_another_form(tmp_path: Path, cache: Path) -> None:
    first = answer(tmp_path / "m", convolutions())
    second = answer(tmp_path / "m", convolutions(seed=5))
    assert first != second
    assert len(forms(cache)) == 2
    assert answer(tmp_path / "other", convolutions()) == first
    assert len(forms(cache)) == 2


def test_form_depends_on_options_version_and_processor(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(tmp_path / "m", convolutions())
    answer(tmp_path / "m", None, optimization={"graph": {"level": 2}})
    assert len(forms(cache)) == 2
    answer(tmp_path / "m", None, parameters={"session.set_denormal_as_zero": {"string_value": "1"}})
    assert len(forms(cache)) == 3
    monkeypatch.setattr(preparation, "_processor", lambda: "another")
    answer(tmp_path / "m", None)
    assert len(forms(cache)) == 4
    monkeypatch.setattr(onnxruntime, "__version__", "99")
    answer(tmp_path / "m", None)
    assert len(forms(cache)) == 5


def test_damaged_form_is_made_again(tmp_path: Path, cache: Path) -> None:
    first = answer(tmp_path / "m", convolutions())
    (form,) = forms(cache)
    weights = form / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert answer(tmp_path / "m", None) == first
    assert (forms(cache)[0] / "weights.bin").read_bytes().strip(b"\0")


def test_form_with_another_signature_is_not_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = answer(tmp_path / "m", convolutions())
    real = preparation._tensors
    monkeypatch.setattr(preparation, "_tensors", lambda session: [*real(session), "more"])
    with caplog.at_level(logging.WARNING):
        assert answer(tmp_path / "m", None) == first
    assert "other inputs or outputs" in caplog.text
    assert forms(cache) == []


def test_folder_that_cannot_be_written_only_warns(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    with caplog.at_level(logging.WARNING):
        first = answer(tmp_path / "m", convolutions())
    assert "no prepared form can be written" in caplog.text
    cache.unlink()
    assert answer(tmp_path / "m", None) == first


def test_failed_write_does_not_fail_the_load(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preparation, "_MODEL", "missing/model.onnx")
    with caplog.at_level(logging.WARNING):
        assert answer(tmp_path / "m", convolutions())
    assert "no prepared form can be written" in caplog.text
    assert forms(cache) == []


def test_broken_model_has_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(InferError) as plain:
        load_onnx(tmp_path / "m", b"x" * (2 << 20))
    with pytest.raises(InferError) as prepared:
        load_onnx(tmp_path / "m", None, backend_config=SETTINGS)
    assert prepared.value.message == plain.value.message


def test_small_models_and_other_servers_write_nothing(tmp_path: Path, cache: Path) -> None:
    load_onnx(tmp_path / "small", onnx_models.add_sub(), backend_config=SETTINGS)
    load_onnx(tmp_path / "large", convolutions(), max_batch_size=0)
    load_onnx(tmp_path / "large", None, backend_config={"prepared-models-bytes": "0"}, max_batch_size=0)
    assert not cache.exists()


def test_external_data_is_part_of_the_model(tmp_path: Path, cache: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)

    def save(seed: int) -> None:
        for file in version.iterdir():
            file.unlink()
        onnx.save_model(
            onnx.load_from_string(convolutions(seed)),
            str(version / "model.onnx"),
            save_as_external_data=True,
            location="data.bin",
        )

    save(0)
    first = answer(tmp_path / "m", None)
    save(1)
    assert answer(tmp_path / "m", None) != first
    assert len(forms(cache)) == 2


@pytest.mark.parametrize("text", ["much", "50%", "-1", "1e9"])
def test_wrong_number_of_bytes_is_an_error(tmp_path: Path, text: str) -> None:
    settings = {"prepared-models-bytes": text}
    with pytest.raises(InferError, match=r"prepared-models-bytes=.*expected a number of bytes such as 10GiB"):
        load_onnx(tmp_path / "m", convolutions(), backend_config=settings)


def test_files_that_change_meanwhile_make_no_form(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the form of the new content would be that of the old one, also after a rollback."""
    first = answer(tmp_path / "m", convolutions())
    shutil.rmtree(cache)
    real = onnxruntime.InferenceSession

    def replace_and_open(path: object, *rest: Any, **named: Any) -> Any:
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(convolutions(seed=5))
        return real(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime, "InferenceSession", replace_and_open)
        assert answer(tmp_path / "m", None) != first
    assert "have changed while it was loaded" in caplog.text
    assert forms(cache) == []
    assert answer(tmp_path / "m", convolutions()) == first


def test_form_that_another_process_removes_is_written_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(tmp_path / "m", convolutions())
    real = preparation._open_form

    def remove_and_open(form: Any, plan: Any) -> Any:
        shutil.rmtree(form.folder)
        monkeypatch.setattr(preparation, "_open_form", real)
        return real(form, plan)

    monkeypatch.setattr(preparation, "_open_form", remove_and_open)
    assert answer(tmp_path / "m", None) == first
    assert len(forms(cache)) == 1


def test_form_not_kept_costs_no_second_load(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[str] = []
    real = onnxruntime.InferenceSession

    def open_session(path: object, *rest: Any, **named: Any) -> Any:
        opened.append(str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(prepared_folder, "_MANIFEST", "missing/manifest.json")
    assert answer(tmp_path / "m", convolutions())
    assert len(opened) == 1
    assert "no prepared form can be kept" in caplog.text
    assert forms(cache) == []


def test_weights_behind_a_linked_folder_make_no_form(tmp_path: Path, cache: Path) -> None:
    """ONNX Runtime follows the link where the model is linked, too; their changes would not be noticed."""
    shared, version = tmp_path / "shared", tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (shared / "weights").mkdir(parents=True)
    (version / "weights").symlink_to(shared / "weights")
    (version / "model.onnx").symlink_to(shared / "model.onnx")

    def save(seed: int) -> None:
        (shared / "weights" / "data.bin").unlink(missing_ok=True)
        onnx.save_model(
            onnx.load_from_string(convolutions(seed)),
            str(shared / "model.onnx"),
            save_as_external_data=True,
            location="weights/data.bin",
        )
        with (version / "weights" / "notes").open("wb") as file:
            file.truncate(1 << 20)
        (version / "large").write_bytes(bytes(1 << 20))

    save(0)
    first = answer(tmp_path / "m", None)
    save(1)
    assert answer(tmp_path / "m", None) != first
    assert forms(cache) == []

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.samples import chunks
from naiad.tools.optimize.samples.chunks import ChunkedSamples
from naiad.tools.optimize.samples.sample_reader import ArraySamples, digest, from_factory, from_path, shape_ranges

INPUTS = (TensorSpec("x", DataType.FP32, (-1, 4)),)
TEXT = (TensorSpec("ids", DataType.INT64, (-1, -1)), TensorSpec("mask", DataType.INT64, (-1, -1)))


def rows(count=3):
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def test_npy_file_has_samples_on_first_axis(tmp_path):
    np.save(tmp_path / "x.npy", rows())
    samples = from_path(tmp_path / "x.npy", INPUTS)
    assert len(samples) == 3
    assert [sample["x"].tolist() for sample in samples] == rows().tolist()


def test_folder_has_a_sample_per_file(tmp_path):
    for index, length in enumerate((3, 9, 5)):
        ids = np.arange(length)
        np.savez(tmp_path / f"{index}.npz", ids=ids, mask=ids)
    samples = from_path(tmp_path, TEXT)
    assert [len(sample["ids"]) for sample in samples] == [3, 9, 5]
    ranges = shape_ranges(samples, max_batch=16)["ids"]
    assert (ranges.minimum, ranges.typical, ranges.maximum) == ((1, 3), (16, 5), (16, 9))


def test_without_batch_all_axes_are_data():
    samples = ArraySamples({"x": rows()}, (), has_batch=False)
    assert shape_ranges(samples, has_batch=False)["x"].minimum == (4,)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": rows()}, "unknown input 'y', expected x"),
        ({"x": rows().astype(np.float64)}, "input 'x': expected datatype FP32, got float64"),
        ({"x": rows()[:, :3]}, r"input 'x': expected shape \[4\], got \[3\]"),
        ({"x": rows(), "z": rows(2)}, "first axis of one length, the samples; got x: 3, z: 2"),
    ],
)
def test_wrong_file_names_input_and_difference(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=message) as error:
        from_path(tmp_path / "data.npz", INPUTS)
    assert str(error.value).startswith(str(tmp_path / "data.npz"))


def test_missing_input_in_folder_names_file(tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.arange(3))
    with pytest.raises(ValueError, match=r"a\.npz: input 'mask' is missing, got ids"):
        list(from_path(tmp_path, TEXT))


def test_file_that_is_no_archive(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"x\.npz: not readable"):
        from_path(tmp_path / "x.npz", INPUTS)


@pytest.mark.parametrize("cut", [10, 300])
def test_cut_archive_is_named(tmp_path, cut):
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).random((100, 4), np.float32))
    data = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(data[:cut])
    with pytest.raises(ValueError, match=r"x\.npz: not readable"):
        from_path(tmp_path / "x.npz", INPUTS)
    (tmp_path / "x.npz").write_bytes(data[:200] + bytes(100) + data[300:])
    with pytest.raises(ValueError, match=r"x\.npz: not readable"):
        from_path(tmp_path / "x.npz", INPUTS)


def test_arrays_of_objects_are_not_suggested(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([None, {}], dtype=object))
    (tmp_path / "x.json").write_text('{"x": 1}')
    for name in ("x.npz", "x.json"):
        with pytest.raises(ValueError, match=f"{name}: not readable .* it is no numpy file, or it holds Python obj"):
            from_path(tmp_path / name, INPUTS)


def test_generator_is_read_once_and_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 32)
    calls = []

    def data():
        calls.append(1)
        yield from rows(7)

    for _ in range(2):
        samples = from_factory(data, tmp_path / "chunks", INPUTS, limit=5)
        assert [sample["x"].tolist() for sample in samples] == rows(5).tolist()
    assert calls == [1]
    assert len(list((tmp_path / "chunks").glob("*.npz"))) == 3


def test_interrupted_generator_is_read_again(tmp_path):
    def broken():
        yield rows()[0]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        from_factory(broken, tmp_path / "chunks", INPUTS)
    assert len(from_factory(lambda: iter(rows()), tmp_path / "chunks", INPUTS)) == 3


def test_generator_of_batches_is_split(tmp_path):
    batches = [rows(3), (rows(2),), {"x": rows(1)}]
    assert len(from_factory(lambda: batches, tmp_path, INPUTS, are_batches=True)) == 6


def test_generator_item_that_does_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"item 1 of the data: input 'x': expected shape \[4\]"):
        from_factory(lambda: [rows()[0], rows()], tmp_path, INPUTS)


def test_empty_generator_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no samples"):
        from_factory(list, tmp_path, INPUTS)


def test_text_survives_the_disk(tmp_path):
    spec = (TensorSpec("text", DataType.BYTES, (-1, 1)),)
    items = [np.array([b"a"], dtype=object), np.array([b"longer"], dtype=object)]
    samples = from_factory(lambda: items, tmp_path, spec)
    assert [sample["text"].tolist() for sample in samples] == [[b"a"], [b"longer"]]


def test_digest_depends_on_values():
    changed = rows()
    changed[2, 3] += 1
    first, second, third = (digest(ArraySamples({"x": each}, INPUTS)) for each in (rows(), rows(), changed))
    assert first == second != third


def test_incomplete_folder_is_no_samples(tmp_path):
    with pytest.raises(FileNotFoundError):
        ChunkedSamples(tmp_path)


def test_digest_differs_for_other_strings():
    def of(*texts):
        return digest([{"x": np.array(texts, object)}])

    assert of("Zürich") == of("Zürich".encode())
    assert len({of(b"a", b"b"), of(b"ab", b""), of(b"a\x00", b"b"), of(b"a")}) == 4

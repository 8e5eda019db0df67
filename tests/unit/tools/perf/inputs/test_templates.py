"""Requests from random data, zeros and JSON files: shapes, batches, streams, and errors that name their place."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata
from naiad.core.tensor import TensorSpec, to_array
from naiad.tools.perf.inputs.templates import prepare_inputs
from naiad.tools.perf.perf_plan import InputSettings, Mode, ModelLoad, Protocol, ServerTarget
from naiad.tools.values.tensor import InputError


def model(*inputs, outputs=(), max_batch_size=0, optional=(), is_stateful=False):
    """Metadata and configuration of a model; tensors are (name, datatype, dims)."""
    batch = (-1,) if max_batch_size else ()
    specs = [
        [TensorSpec(name, datatype, (*batch, *dims)) for name, datatype, dims in group] for group in (inputs, outputs)
    ]
    config = ModelConfig(name="m", max_batch_size=max_batch_size)
    for name, _, dims in inputs:
        config.input.add(name=name, dims=dims, optional=name in optional)
    if is_stateful:
        config.sequence_batching.SetInParent()
    return ModelMetadata("m", ["1"], "", *specs), config


def prepare(described, batch_size=1, service=None, **settings):
    return prepare_inputs(ModelLoad("m", "", batch_size, InputSettings(**settings)), *described, service)


def arrays(template):
    header = template.header
    return {spec.name: to_array(spec, data) for spec, data in zip(header.inputs, template.data, strict=True)}


def json_file(tmp_path, data, **more):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": data, **more}))
    return (str(path),)


def test_warm_up_gives_variable_dimensions():
    described = model(("A", DataType.FP32, (3, -1)), ("B", DataType.FP32, (-1,)), max_batch_size=4)
    sample = described[1].model_warmup.add()
    sample.inputs["A"].dims.extend((3, 7))
    sample.inputs["B"].dims.extend((2, 2))
    with pytest.raises(InputError, match=r"input 'B' of model 'm' has shape \[-1\]"):
        prepare(described)
    templates = prepare(described, shapes={"B": (5,)}).templates
    assert {name: each.shape for name, each in arrays(templates[0]).items()} == {"A": (1, 3, 7), "B": (1, 5)}
    assert arrays(prepare(described, shapes={"A": (3, 1), "B": (5,)}).templates[0])["A"].shape == (1, 3, 1)


@pytest.mark.parametrize("datatype", list(DataType))
def test_random_values_fit_every_datatype(datatype):
    templates = prepare(model(("A", datatype, (2, 3)))).templates
    assert len(templates) == 16
    assert len({bytes(template.data[0]) for template in templates}) > 1
    for template in templates:
        array = arrays(template)["A"]
        assert array.shape == (2, 3)
        if datatype is DataType.BYTES:
            assert {len(each) for each in array.ravel()} == {128}
        else:
            assert array.dtype == datatype.numpy
            assert (array >= 0).all()
            assert (array < 128).all()


def test_random_requests_repeat_with_seed():
    described = model(("A", DataType.FP32, (4,)))
    first, again, other = (prepare(described, seed=seed).templates[0].data[0] for seed in (1, 1, 2))
    assert bytes(first) == bytes(again) != bytes(other)


def test_integer_bounds_hold_for_embeddings():
    described = model(("ids", DataType.INT64, (500,)), ("attention_mask", DataType.INT64, (500,)))
    values = arrays(prepare(described, integer_bounds={"ids": 5}).templates[0])
    assert set(values["ids"]) == set(range(5))
    assert set(values["attention_mask"]) == {0, 1}


def test_integer_bounds_stay_in_the_datatype():
    described = model(("A", DataType.INT8, (500,)))
    values = arrays(prepare(described, integer_bounds={"A": 1 << 40}).templates[0])["A"]
    assert values.min() >= 0
    assert values.max() > 100


def test_settings_may_name_inputs_of_other_models():
    metadata, config = model(("A", DataType.FP32, (-1,)))
    plan = ModelLoad("m", inputs=InputSettings(shapes={"A": (2,), "B": (3,)}, integer_bounds={"C": 4}))
    prepared = prepare_inputs(plan, metadata, config, is_only_model=False)
    assert prepared.templates[0].header.inputs[0].shape == (2,)


def test_large_random_requests_are_fewer():
    described = model(("A", DataType.UINT8, (20 << 20,)), max_batch_size=2)
    assert len(prepare(described, batch_size=2).templates) == 1


@pytest.mark.parametrize(
    ("described", "settings"),
    [
        (model(("A", DataType.FP32, (-1,))), {"shapes": {"A": (1 << 40,)}}),
        (model(("A", DataType.FP32, (-1,))), {"shapes": {"A": (1 << 40,)}, "sources": ("zero",)}),
        (model(("A", DataType.BYTES, (1,))), {"string_length": 1 << 40}),
        (model(("A", DataType.FP32, (1 << 20,)), max_batch_size=4096), {"batch_size": 4096}),
    ],
)
def test_requests_beyond_every_protocol_are_refused(described, settings):
    with pytest.raises(InputError, match=r"over 2 GiB: batch size .*, and input 'A' with shape"):
        prepare(described, **settings)


def test_string_data_is_every_string():
    template = prepare(model(("A", DataType.BYTES, (2,))), string_data="ä").templates[0]
    assert list(arrays(template)["A"]) == ["ä".encode()] * 2


def test_zeros_are_one_request():
    described = model(("A", DataType.BF16, (2,)), ("B", DataType.BYTES, (1,)))
    (template,) = prepare(described, sources=("zero",)).templates
    assert not arrays(template)["A"].any()
    assert arrays(template)["B"].tolist() == [b""]


def test_batches_hold_consecutive_samples(tmp_path):
    data = [{"A": [i]} for i in range(3)]
    described = model(("A", DataType.INT32, (1,)), max_batch_size=4)
    prepared = prepare(described, batch_size=2, sources=json_file(tmp_path, data))
    assert [arrays(template)["A"].tolist() for template in prepared.templates] == [[[0], [1]], [[2], [0]]]
    assert prepared.streams == [range(2)]
    assert prepared.templates[1].source == "data.json step 2"


def test_streams_match_the_file(tmp_path):
    data = [[{"A": [1]}, {"A": [2]}], [{"A": [3]}]]
    described = model(("A", DataType.INT32, (1,)), max_batch_size=4, is_stateful=True)
    prepared = prepare(described, batch_size=2, sources=json_file(tmp_path, data))
    assert prepared.streams == [range(2), range(2, 3)]
    assert arrays(prepared.templates[1])["A"].tolist() == [[2], [2]]


def test_sources_are_mixed_in_order(tmp_path):
    file = json_file(tmp_path, [{"A": [7]}])
    prepared = prepare(model(("A", DataType.INT32, (1,))), sources=("zero", *file, "random"))
    assert [arrays(each)["A"][0] for each in prepared.templates[:2]] == [0, 7]
    assert prepared.streams == [range(18)]


def test_timestamps_are_a_fixed_schedule(tmp_path):
    file = json_file(tmp_path, [{"A": [1], "timestamp": 2.5}, {"A": [2], "timestamp": [1]}])
    prepared = prepare(model(("A", DataType.INT32, (1,))), sources=file)
    assert prepared.offsets_ns == (1_000_000, 2_500_000)
    assert [arrays(each)["A"][0] for each in prepared.templates] == [2, 1]


def test_validation_data_is_batched_too(tmp_path):
    described = model(
        ("A", DataType.INT32, (1,)),
        outputs=[("B", DataType.FP32, (-1,)), ("C", DataType.BYTES, (1,))],
        max_batch_size=2,
    )
    validation = [{"B": [1, 2.5], "C": ["x"]}, {"B": [3, 4], "C": ["y"]}]
    file = json_file(tmp_path, [{"A": [1]}, {"A": [2]}], validation_data=validation)
    (template,) = prepare(described, batch_size=2, sources=file).templates
    assert template.expected["B"].tolist() == [[1, 2.5], [3, 4]]
    assert template.expected["C"].tolist() == [[b"x"], [b"y"]]


def test_optional_inputs_may_be_left_out(tmp_path):
    described = model(("A", DataType.INT32, (1,)), ("B", DataType.INT32, (-1,)), optional=["B"])
    assert list(arrays(prepare(described).templates[0])) == ["A"]
    file = json_file(tmp_path, [{"A": [1]}, {"A": [1], "B": [2, 3]}])
    assert [list(arrays(each)) for each in prepare(described, sources=file).templates] == [["A"], ["A", "B"]]


def test_shape_flag_fixes_variable_dimensions():
    described = model(("A", DataType.FP32, (-1, 3)), max_batch_size=8)
    template = prepare(described, batch_size=2, shapes={"A": (5, 3)}).templates[0]
    assert template.header.inputs[0].shape == (2, 5, 3)


def test_header_follows_the_service():
    described = model(("A", DataType.FP32, (1,)))
    header = prepare(described, parameters={"p": 1}).templates[0].header
    assert (header.model_name, header.parameters, header.binary_output_default) == ("m", {"p": 1}, True)
    service = ServerTarget("grpc://localhost:1", Protocol.GRPC, Mode.STREAM, has_binary_outputs=False)
    header = prepare(described, service=service).templates[0].header
    assert (header.wants_empty_final, header.binary_output_default) == (True, False)


def test_templates_can_go_to_other_processes():
    prepared = prepare(model(("A", DataType.BYTES, (1,)), outputs=[("B", DataType.FP32, (1,))]))
    copy = pickle.loads(pickle.dumps(prepared))
    assert copy.templates[3].data == prepared.templates[3].data
    assert copy.templates[3].header.inputs == prepared.templates[3].header.inputs


def test_metadata_alone_shows_batching():
    metadata, _ = model(("A", DataType.FP32, (3,)), max_batch_size=1)
    prepared = prepare_inputs(ModelLoad("m", batch_size=5), metadata, None)
    assert prepared.templates[0].header.inputs[0].shape == (5, 3)


@pytest.mark.parametrize(
    ("batch_size", "settings", "words"),
    [
        (1, {}, r"input 'A' of model 'm' has shape \[-1, 3\].*--shape A:1,3"),
        (
            1,
            {"shapes": {"A": (2, 4)}},
            r"--shape A: expected shape \[-1, 3\], without a batch dimension, got \[2, 4\]",
        ),
        (1, {"shapes": {"X": (2,)}}, "--shape X: model 'm' has no such input; it has 'A'"),
        (1, {"integer_bounds": {"X": 2}}, "--input-bound X: model 'm' has no such input; it has 'A'"),
        (9, {"shapes": {"A": (2, 3)}}, "batch size 9: model 'm' has max_batch_size 8"),
        (0, {"shapes": {"A": (2, 3)}}, "batch size 0"),
        (1, {"sources": ("nothing.json",)}, "nothing.json: expected random, zero, or a path"),
        (1, {"sources": ()}, "expected a source"),
        (1, {"parameters": {"priority": 1}}, "priority: the name is reserved"),
        (1, {"parameters": {"triton_x": 1}}, "triton_x: the name is reserved"),
    ],
)
def test_wrong_settings_are_explained(batch_size, settings, words):
    with pytest.raises(InputError, match=words):
        prepare(model(("A", DataType.FP32, (-1, 3)), max_batch_size=8), batch_size, **settings)


def test_batch_of_a_model_without_batching_fails():
    with pytest.raises(InputError, match="batch size 2: model 'm' does not batch"):
        prepare(model(("A", DataType.FP32, (1,))), 2)


def test_different_shapes_cannot_share_a_batch(tmp_path):
    file = json_file(tmp_path, [{"A": [1]}, {"A": [1, 2]}])
    with pytest.raises(InputError, match=r"step 0 and data.json step 1 .* input 'A' has shape \[1\] and \[2\]"):
        prepare(model(("A", DataType.FP32, (-1,)), max_batch_size=8), 2, sources=file)


def test_other_files_are_explained(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("")
    with pytest.raises(InputError, match=r"data.csv: expected random, zero, a directory, or a .json, .npy, .npz"):
        prepare(model(("A", DataType.FP32, (1,))), sources=(str(path),))


def test_every_kind_of_source_is_read(tmp_path):
    (tmp_path / "directory").mkdir()
    np.save(tmp_path / "directory" / "A.npy", np.zeros((2, 3, 1, 1), np.uint8))
    np.save(tmp_path / "a.npy", np.ones((3, 1, 1), np.uint8))
    np.savez(tmp_path / "a.npz", A=np.full((3, 1, 1), 2, np.uint8))
    Image.new("RGB", (1, 1), (3, 3, 3)).save(tmp_path / "a.png")
    sources = tuple(str(tmp_path / name) for name in ("directory", "a.npy", "a.npz", "a.png"))
    prepared = prepare(model(("A", DataType.UINT8, (3, 1, 1)), max_batch_size=1), sources=sources)
    assert [arrays(each)["A"].ravel().tolist() for each in prepared.templates] == [[i] * 3 for i in (0, 0, 1, 2, 3)]

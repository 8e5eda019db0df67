"""Models that ONNX Runtime refuses: the error says what to do before it quotes the library."""

import pytest

from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context

onnx = pytest.importorskip("onnx")


def external_weights():
    weights = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=1)
    for key, value in {"location": "absent.bin", "length": "8"}.items():
        weights.external_data.add(key=key, value=value)
    return weights


def model(kind=1, opset=13, ir_version=8, operator="Identity", domain="", node_input="x", is_external=False):
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(name, kind, [None, 2]) for name in "xy")
    node = helper.make_node(operator, [node_input], ["y"], domain=domain)
    if is_external:
        node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], initializer=[external_weights()] if is_external else [])
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version).SerializeToString()


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"opset": 99}, "its opset is later than the installed ONNX Runtime knows; update onnxruntime"),
        ({"ir_version": 99}, "its IR version is later than that of the installed ONNX Runtime"),
        ({"kind": 14}, "it has a tensor of a datatype that ONNX Runtime does not have"),
        ({"operator": "Nope"}, "it has an operator that ONNX Runtime does not have"),
        ({"operator": "My", "domain": "my.ops"}, "it has an operator that ONNX Runtime does not have"),
        ({"is_external": True}, "its weights are in another file, which is missing, too short"),
        ({"node_input": "z"}, "its graph is not valid: onnx.checker.check_model"),
    ],
)
def test_refused_model_names_what_to_do(tmp_path, settings, advice):
    context = make_context(ModelConfig(name="m", backend="onnxruntime"), tmp_path)
    (context.version_dir / "model.onnx").parent.mkdir(parents=True, exist_ok=True)
    (context.version_dir / "model.onnx").write_bytes(model(**settings))
    with pytest.raises(InferError) as raised:
        OnnxRuntimeBackend().auto_complete(context)
    opening, _, library = raised.value.message.partition("cannot be loaded: ")
    assert opening.endswith("model.onnx ")
    assert library.startswith(advice)
    assert ": onnx runtime error" in library

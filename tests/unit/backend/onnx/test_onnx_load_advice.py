"""Models that ONNX Runtime refuses: the error says what to do before it quotes the library."""

import pytest

from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context

onnx = pytest.importorskip("onnx")


def model(kind=1, opset=13, ir_version=8, operator="Identity", domain=""):
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(name, kind, [None, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], domain=domain)], "g", [x], [y])
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

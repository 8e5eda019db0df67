"""Pre-processing as part of an ONNX graph, with the operators of onnxruntime-extensions.

`python -m naiad.tools.optimize.converters.onnx.merge MODEL STEPS FOLDER` reads the steps from a JSON file.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob

LIBRARY = "onnxruntime_extensions"
CONFIG = f'model_operations {{ op_library_filename: "{LIBRARY}" }}\n'
"""What `config.pbtxt` needs for the merged graph; the package is installed where it is served."""

_OPSET = 18
"""From here on, resizing has anti-aliasing."""
_KEYS: Mapping[str, tuple[str, ...]] = {
    "decode": ("colors",),
    "resize": ("height", "width"),
    "crop": ("height", "width"),
    "scale": ("factor",),
    "channels-first": (),
    "normalize": ("mean", "std"),
    "tokenize": ("vocabulary", "lower_case", "token_types"),
}
_DEFAULTS: Mapping[str, Any] = {"colors": "rgb", "factor": 1 / 255, "lower_case": True, "token_types": False}
_COLORS = ("rgb", "bgr")

Step = Mapping[str, Any]
"""`step`, one of the names above, and its keys."""


def convert(job: ConversionJob) -> None:
    """Write model.onnx with the steps in the settings before the graph, or the steps alone if `is_alone` is set."""
    folder = Path(job.output)
    if not job.settings["is_alone"]:
        merge_preprocessing(Path(job.source), job.settings["steps"], folder)
        return
    with tempfile.TemporaryDirectory() as home:
        graph = Path(home, "identity.onnx")
        _write_identity(Path(job.source), graph)
        merge_preprocessing(graph, job.settings["steps"], folder)


def merge_preprocessing(model: Path, steps: Sequence[Step], folder: Path) -> str:
    """Write model.onnx with the steps before the graph, and return lines for `config.pbtxt`.

    The graph takes one sample: `image`, UINT8 [bytes of a JPEG or PNG], or `text`, BYTES [1]. Steps of pictures work
    on height, width and channels, until `channels-first`; at the end they add the batch dimension. Raises ValueError
    for a step, a key or a value that does not fit.
    """
    import onnx
    from onnx import version_converter
    from onnxruntime_extensions.tools import pre_post_processing as library

    checked = check_steps(steps)
    is_text = checked[0]["step"] == "tokenize"
    kind = onnx.TensorProto.STRING if is_text else onnx.TensorProto.UINT8
    value = library.create_named_value("text" if is_text else "image", kind, [1] if is_text else ["bytes"])
    graph = onnx.load(model)
    opset = max(_OPSET, *(each.version for each in graph.opset_import if each.domain in ("", "ai.onnx")))
    pipeline = library.PrePostProcessor([value], opset)
    pipeline.add_pre_processing(_operators(library, checked))
    merged = pipeline.run(version_converter.convert_version(graph, opset))
    # Results of steps that the graph does not take, as the attention mask, become outputs.
    names = {output.name for output in graph.graph.output}
    for output in [each for each in merged.graph.output if each.name not in names]:
        merged.graph.output.remove(output)
    for output in merged.graph.output:
        if output.type.tensor_type.shape.dim:
            output.type.tensor_type.shape.dim[0].dim_value = 1
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(merged, folder / "model.onnx")
    return CONFIG


def check_steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the steps with all keys. Raises ValueError for a step, a key or a value that does not fit."""
    checked = [_checked(index, step) for index, step in enumerate(steps)]
    if not checked or checked[0]["step"] not in ("decode", "tokenize"):
        raise ValueError("steps: the first one is 'decode', which reads pictures, or 'tokenize', which reads text")
    if checked[0]["step"] == "tokenize" and len(checked) > 1:
        raise ValueError(f"steps[1]: '{checked[1]['step']}' follows 'tokenize', whose results the model takes")
    return checked


def _write_identity(model: Path, target: Path) -> None:
    """Write a graph with the inputs of a model, which it returns in order."""
    import onnx
    from onnx import helper

    graph = onnx.load(model, load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in weights]
    nodes = [helper.make_node("Identity", [each.name], [f"{each.name}_prepared"]) for each in inputs]
    outputs = [helper.make_value_info(f"{each.name}_prepared", each.type) for each in inputs]
    made = helper.make_graph(nodes, "identity", inputs, outputs)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8), target)


def _checked(index: int, step: Step) -> dict[str, Any]:
    name = str(step.get("step"))
    if name not in _KEYS:
        raise ValueError(f"steps[{index}]: step is '{name}'; write one of {', '.join(_KEYS)}")
    for key in step:
        if key != "step" and key not in _KEYS[name]:
            known = ", ".join(_KEYS[name]) or "no keys"
            raise ValueError(f"steps[{index}]: '{name}' has no key '{key}'; it has {known}")
    values = {**{key: _DEFAULTS[key] for key in _KEYS[name] if key in _DEFAULTS}, **step}
    missing = [key for key in _KEYS[name] if key not in values]
    if missing:
        raise ValueError(f"steps[{index}]: '{name}' needs {' and '.join(missing)}")
    if values.get("colors") not in (None, *_COLORS):
        raise ValueError(f"steps[{index}]: colors is {values['colors']!r}; write one of {', '.join(_COLORS)}")
    if name == "normalize" and len(values["mean"]) != len(values["std"]):
        raise ValueError(f"steps[{index}]: mean has {len(values['mean'])} values, std {len(values['std'])}")
    return values


def _operators(library: Any, steps: Sequence[Step]) -> list[Any]:
    found: list[Any] = []
    layout = "HWC"
    for step in steps:
        match step["step"]:
            case "decode":
                found.append(library.ConvertImageToBGR())
                if step["colors"] == "rgb":
                    found.append(library.ReverseAxis(axis=2, dim_value=3, name="BGR_to_RGB"))
            case "resize":
                found.append(library.Resize((step["height"], step["width"]), layout))
            case "crop":
                found.append(library.CenterCrop(step["height"], step["width"]))
            case "scale":
                found.append(library.ImageBytesToFloat(step["factor"]))
            case "channels-first":
                found.append(library.ChannelsLastToChannelsFirst())
                layout = "CHW"
            case "normalize":
                found.append(library.Normalize(list(zip(step["mean"], step["std"], strict=True)), layout))
            case "tokenize":
                return [_tokenizer(library, step)]
    return [*found, library.Unsqueeze([0])]


def _tokenizer(library: Any, step: Step) -> Any:
    """Return a WordPiece tokenizer; the vocabulary is a list, or a file with a word in each line."""
    words = step["vocabulary"]
    if isinstance(words, str):
        words = Path(words).read_text(encoding="utf-8").splitlines()
    parameters = library.TokenizerParam(
        {word: index for index, word in enumerate(words)}, do_lower_case=int(step["lower_case"])
    )
    # The library's flag has the opposite meaning of its name.
    return library.BertTokenizer(parameters, need_token_type_ids_output=not step["token_types"])


if __name__ == "__main__":
    print(
        merge_preprocessing(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])), end=""
    )

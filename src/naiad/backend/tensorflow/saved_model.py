"""SavedModel directories: choice of the graph by its tags, and of the function by its signature."""

from collections.abc import Sequence
from pathlib import Path

from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from naiad.backend.tensorflow.library import tensorflow
from naiad.backend.tensorflow.program import Program
from naiad.core.errors import invalid_argument

_DEFAULT_TAG = "serve"
_DEFAULT_SIGNATURE = "serving_default"


def load_saved_model(path: Path, tags: str, signature: str) -> Program:
    """Return the program of a signature.

    `tags` are separated by commas; without any the graph is the one with the tag `serve`, or the only one. Without
    `signature` the function is `serving_default`, or the first one (as in Triton). Raises InferError(INVALID_ARG) for
    tags and signatures that the model does not have, otherwise what TensorFlow raises.
    """
    loaded = tensorflow.saved_model.load(str(path), tags=_choose_tags(path, tags))
    functions = loaded.signatures
    if not functions:
        raise invalid_argument(
            f"{path} has no signatures; save it with tf.saved_model.save(..., signatures=...), or a Keras model with "
            "its method export"
        )
    name = signature or (_DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in functions else min(functions))
    if name not in functions:
        raise invalid_argument(
            f"{path} has no signature '{name}', which the parameter TF_SIGNATURE_DEF names; its signatures are "
            f"{', '.join(sorted(functions))}"
        )
    function = functions[name]
    return Program(function, function.structured_input_signature[1], function.structured_outputs, loaded)


def _choose_tags(path: Path, tags: str) -> Sequence[str]:
    description = SavedModel()
    description.ParseFromString((path / "saved_model.pb").read_bytes())
    existing = [sorted(graph.meta_info_def.tags) for graph in description.meta_graphs]
    wanted = sorted(filter(None, (tag.strip() for tag in tags.split(",")))) or [_DEFAULT_TAG]
    if wanted in existing:
        return wanted
    if not tags and len(existing) == 1:
        return existing[0]
    shown = " or ".join(",".join(each) for each in existing)
    raise invalid_argument(
        f"{path} has no graph with the tags {','.join(wanted)}; write the parameter TF_GRAPH_TAG with the tags "
        f"{shown}"
    )

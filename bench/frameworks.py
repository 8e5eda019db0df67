"""Throughput of an image classifier: a bare loop over its framework, naiad in process, and naiad as a server.

    python -m bench.frameworks [--frameworks openvino litert tensorflow | pytorch] [--rounds 15] [--seconds 0.5]

The classifier is MobileNetV2 with random weights (224 x 224 x 3, 600 KB an image), made by Keras and converted, or
for PyTorch that of transformers. All have one compute thread. The three take turns, briefly, so that other load meets
all of them. The command prints medians of images per second and of the shares of each turn, and the largest
difference of an output. The server is asked over gRPC with two requests in flight. Needs all of the frameworks.
"""

import argparse
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tritonclient.grpc as triton

from bench.peers import Naiad, Running
from naiad.config.backends import BUILT_IN
from naiad.core.tensor import Array
from naiad.testing import BackendModel

_IN_FLIGHT = 2
_FORMAT = "{:12} {:>10} {:>12} {:>8} {:>10} {:>8} {:>11}"


@dataclass(frozen=True)
class Framework:
    """How a framework gets the classifier, and how it is called without a server."""

    write: Callable[[Path, Path], None]
    """Write the model's files; takes a SavedModel, and the version directory."""
    open: Callable[[Path], Callable[[Array], Array]]
    """Return a function that classifies; takes the version directory."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Of naiad's configuration, for one thread."""
    shape: tuple[int, ...] = (1, 224, 224, 3)
    """Of an image."""
    is_converted: bool = True
    """Whether it gets the classifier of Keras."""


def write_openvino(saved: Path, version: Path) -> None:
    """Convert to IR."""
    import openvino

    openvino.save_model(openvino.convert_model(saved), version / "model.xml", compress_to_fp16=False)


def open_openvino(version: Path) -> Callable[[Array], Array]:
    """Return an infer request's call with shared inputs, the fastest of OpenVINO's ways for one request."""
    import openvino

    properties = {"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(version / "model.xml", "CPU", properties).create_infer_request()

    def classify(images: Array) -> Array:
        return np.array(request.infer({0: images}, share_inputs=True, share_outputs=True)[0])

    return classify


def write_litert(saved: Path, version: Path) -> None:
    """Convert to TFLite."""
    import tensorflow as tf

    (version / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(saved)).convert())


def open_litert(version: Path) -> Callable[[Array], Array]:
    """Return an interpreter's three calls."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(version / "model.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    source, target = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def classify(images: Array) -> Array:
        interpreter.set_tensor(source, images)
        interpreter.invoke()
        output: Array = interpreter.get_tensor(target)
        return output

    return classify


def write_tensorflow(saved: Path, version: Path) -> None:
    """Link the SavedModel."""
    (version / "model.savedmodel").symlink_to(saved)


def open_tensorflow(version: Path) -> Callable[[Array], Array]:
    """Return a call of the signature."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(version / "model.savedmodel"))
    function = loaded.signatures["serving_default"]

    def classify(images: Array) -> Array:
        assert loaded is not None  # its variables live as long as it does
        (output,) = function(image=tf.constant(images)).values()
        array: Array = output.numpy()
        return array

    return classify


def write_pytorch(saved: Path, version: Path) -> None:
    """Export MobileNetV2 of transformers, with random weights: nothing converts the SavedModel to PyTorch."""
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    class Classifier(torch.nn.Module):  # type: ignore[misc]  # PyTorch is Any to the type checker
        def __init__(self) -> None:
            super().__init__()
            self.model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))

        def forward(self, image: Any) -> Any:
            return self.model(image).logits

    torch.set_num_threads(1)
    image = torch.zeros(1, 3, 224, 224)
    torch.export.save(torch.export.export(Classifier().eval(), (image,)), version / "model.pt2")


def open_pytorch(version: Path) -> Callable[[Array], Array]:
    """Return a call of the exported program's module in inference mode."""
    import torch

    module = torch.export.load(version / "model.pt2").module()

    def classify(images: Array) -> Array:
        with torch.inference_mode():
            array: Array = module(torch.from_numpy(images)).numpy()
        return array

    return classify


FRAMEWORKS: Mapping[str, Framework] = {
    "openvino": Framework(write_openvino, open_openvino, {"INFERENCE_NUM_THREADS": "1"}),
    "litert": Framework(write_litert, open_litert, {"num_threads": "1"}),
    "pytorch": Framework(
        write_pytorch, open_pytorch, {"INTRA_OP_THREAD_COUNT": "1"}, shape=(1, 3, 224, 224), is_converted=False
    ),
    "tensorflow": Framework(
        write_tensorflow, open_tensorflow, {"TF_NUM_INTRA_THREADS": "1", "TF_NUM_INTER_THREADS": "1"}
    ),
}


CONVERTED = [name for name, framework in FRAMEWORKS.items() if framework.is_converted]
"""Measured by default. `torch.export` crashes after TensorFlow was loaded, so PyTorch is measured alone."""


def save_classifier(directory: Path) -> None:
    """Write MobileNetV2 as a SavedModel with the input `image`."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    image = keras.Input((224, 224, 3), name="image")
    model = keras.applications.MobileNetV2(input_tensor=image, weights=None)
    model.export(str(directory), verbose=False)


def write_model(repository: Path, name: str, framework: Framework, saved: Path) -> Path:
    """Write a model with one instance and one thread, and return its directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    framework.write(saved, version)
    parameters = "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in framework.parameters.items()
    )
    config = f'backend: "{name}"\ninstance_group {{ count: 1 }}\n{parameters}\n'
    (version.parent / "config.pbtxt").write_text(config)
    return version.parent


def images_per_second(call: Callable[[], object], seconds: float) -> float:
    """Call for so long, and return the rate."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        call()
        count += 1
    return count / passed


class Client:
    """Requests with one image each, several in flight."""

    def __init__(self, server: Running, model: str, names: tuple[str, str], images: Array) -> None:
        self._client = triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        self._model = model
        self._output = names[1]
        self._tensor = triton.InferInput(names[0], list(images.shape), "FP32")
        self._tensor.set_data_from_numpy(images)

    def ask(self) -> Array:
        """Return the output of one request."""
        output: Array = self._client.infer(self._model, [self._tensor]).as_numpy(self._output)
        return output

    def images_per_second(self, seconds: float) -> float:
        """Return the rate of all threads together."""
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            return sum(pool.map(lambda _: images_per_second(self.ask, seconds), range(_IN_FLIGHT)))


def measure(name: str, model: Path, server: Running, options: argparse.Namespace) -> None:
    """Print the line of one framework."""
    images = np.random.default_rng(0).random(FRAMEWORKS[name].shape, np.float32)
    classify = FRAMEWORKS[name].open(model / "1")
    module, _, kind = BUILT_IN[name].partition(":")
    backend: Any = getattr(importlib.import_module(module), kind)
    rounds: list[tuple[float, float, float]] = []
    with BackendModel(backend(), model) as loaded:
        names = loaded.config.input[0].name, loaded.config.output[0].name
        client = Client(server, name, names, images)
        expected = classify(images)
        difference = max(
            float(np.abs(found - expected).max())
            for found in (loaded.infer({names[0]: images})[names[1]], client.ask())
        )
        for _ in range(options.rounds):
            rounds.append(
                (
                    images_per_second(lambda: classify(images), options.seconds),
                    images_per_second(lambda: loaded.infer({names[0]: images}), options.seconds),
                    client.images_per_second(options.seconds),
                )
            )
    bare, in_process, served = (statistics.median(column) for column in zip(*rounds, strict=True))
    shares = [statistics.median(each[index] / each[0] for each in rounds) for index in (1, 2)]
    print(
        _FORMAT.format(
            name, f"{bare:.1f}", f"{in_process:.1f}", f"{shares[0]:.1%}", f"{served:.1f}", f"{shares[1]:.1%}",
            f"{difference:.1e}",
        ),
        flush=True,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print one line for each framework."""
    parser = argparse.ArgumentParser(prog="python -m bench.frameworks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frameworks", nargs="+", choices=list(FRAMEWORKS), default=CONVERTED)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        saved = work / "saved"
        if any(FRAMEWORKS[name].is_converted for name in options.frameworks):
            save_classifier(saved)
        models = {name: write_model(work / "models", name, FRAMEWORKS[name], saved) for name in options.frameworks}
        server = Naiad().start(work / "models", work)
        try:
            print(_FORMAT.format("framework", "bare /s", "execute /s", "share", "server /s", "share", "difference"))
            for name, model in models.items():
                measure(name, model, server, options)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

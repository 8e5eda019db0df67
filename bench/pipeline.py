"""A network in two stages beside the whole network on one thread, each under steady load.

    python -m bench.pipeline [ROUNDS SECONDS]

`naiad split` cuts the network; one server serves both. The load alternates between them, so that other work of the
machine meets both. Two stages on two cores can be at most twice as fast. Two instances of the whole network, with
twice the memory, show what two threads of the machine can do at that time.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper, numpy_helper

from bench.peers import Naiad
from bench.process_tree import CpuMeter

CHANNELS, LAYERS, SIZE = 64, 24, 64
CLIENTS = 6
WHOLE, DOUBLE, STAGED = "whole", "double", "network"
_CONFIG = """
backend: "onnxruntime"
max_batch_size: 32
dynamic_batching { }
instance_group [ { count: %d kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def write_network(path: Path) -> None:
    """Write convolutions of 64 channels on 64 x 64 pixels: some 35 ms on one core."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(LAYERS):
        shape = (CHANNELS, CHANNELS if index else 3, 3, 3)
        weight = random.standard_normal(shape).astype(np.float32) / np.float32(3 * CHANNELS**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        last = f"r{index}"
    nodes += [helper.make_node("GlobalAveragePool", [last], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CHANNELS])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def write_repository(root: Path) -> Path:
    """Write the whole network and its two stages."""
    file = root / f"{STAGED}.onnx"
    write_network(file)
    repository = root / "models"
    split = [sys.executable, "-m", "naiad", "split", str(file), "--stages=2", f"--output={repository}"]
    subprocess.run(split, check=True)
    for count, name in ((1, WHOLE), (2, DOUBLE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG % count)
        shutil.copy(file, repository / name / "1" / "model.onnx")
    return repository


def load(url: str, model: str, seconds: float) -> tuple[int, float]:
    """Return the number of images and the seconds, with `CLIENTS` images in flight."""
    image = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE), np.float32)
    end_s = time.monotonic() + seconds

    def work(_: int) -> int:
        count = 0
        with grpcclient.InferenceServerClient(url) as client:
            tensor = grpcclient.InferInput("x", list(image.shape), "FP32")
            tensor.set_data_from_numpy(image)
            while time.monotonic() < end_s:
                client.infer(model, [tensor])
                count += 1
        return count

    start_s = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as threads:
        counts = list(threads.map(work, range(CLIENTS)))
    return sum(counts), time.monotonic() - start_s


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    rounds, seconds = (int(argv[0]), float(argv[1])) if argv else (8, 2.5)
    found: dict[str, list[float]] = {WHOLE: [], DOUBLE: [], STAGED: []}
    cpu_ms: dict[str, list[float]] = {model: [] for model in found}
    with tempfile.TemporaryDirectory() as directory:
        repository = write_repository(Path(directory))
        server = Naiad().start(repository, Path(directory) / "naiad")
        url = f"127.0.0.1:{server.grpc_port}"
        try:
            for model in found:
                load(url, model, 1.0)
            for _ in range(rounds):
                for model, rates in found.items():
                    meter = CpuMeter(server.process.pid)
                    count, elapsed_s = load(url, model, seconds)
                    rates.append(count / elapsed_s)
                    cpu_ms[model].append(meter.seconds() * 1e3 / count)
        finally:
            server.stop()
    for model, rates in found.items():
        cost = f"{median(cpu_ms[model]):.1f} ms of CPU each"
        print(f"{model:<8} {median(rates):6.1f} images/s, {cost}   ({', '.join(f'{rate:.1f}' for rate in rates)})")
    for model, base in ((DOUBLE, WHOLE), (STAGED, WHOLE), (STAGED, DOUBLE)):
        ratios = [rate / other for rate, other in zip(found[model], found[base], strict=True)]
        print(f"{model} / {base}: {median(ratios):.2f}   ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main(sys.argv[1:])

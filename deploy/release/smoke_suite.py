"""Serve an identity and an ONNX model with the installed package, and infer over HTTP and gRPC with Triton's client.

smoke_suite.py [DIRECTORY OF THE COMMANDS]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper

BIN = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sys.executable).parent
IDENTITY = """backend: "identity" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]"""


def write_models(repository: Path) -> None:
    """Write `same`, an identity, and `twice`, an ONNX model without a configuration."""
    for name in ("same", "twice"):
        (repository / name / "1").mkdir(parents=True)
    (repository / "same" / "config.pbtxt").write_text(IDENTITY)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Add", ["IN", "IN"], ["OUT"])], "twice", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, repository / "twice" / "1" / "model.onnx")


def infer(module: object, address: str, model: str) -> np.ndarray:
    """Send one request with a module of tritonclient."""
    tensor = module.InferInput("IN", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
    with module.InferenceServerClient(address) as client:
        return client.infer(model, [tensor]).as_numpy("OUT")


def addresses(server: subprocess.Popen) -> dict[str, str]:
    """Read the log until the server is ready and return the addresses of its services."""
    found = {}
    for line in server.stderr:
        started = re.search(r"Started (HTTP|GRPCInference)Service at ([^\s\"]+)", line)
        if started:
            found[started[1]] = started[2]
        if re.search(r'"ready: ', line):
            return found
    raise SystemExit("the server has ended")


def main() -> None:
    """Run all checks; an exception is a failure."""
    print("naiad", subprocess.check_output([BIN / "naiad", "version"], text=True).strip())
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        write_models(repository)
        subprocess.run([BIN / "naiad", "check", repository, "--load"], check=True, stdout=subprocess.DEVNULL)
        command = [BIN / "tritonserver", f"--model-repository={repository}"]
        command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1"]
        server = subprocess.Popen([*command, "--grpc-address=127.0.0.1"], stderr=subprocess.PIPE, text=True)
        try:
            found = addresses(server)
            for module, service in ((httpclient, "HTTP"), (grpcclient, "GRPCInference")):
                for model, factor in (("same", 1), ("twice", 2)):
                    result = infer(module, found[service], model)
                    assert np.array_equal(result, factor * np.array([[1, 2, 3, 4]])), (service, model, result)
                    print(f"{service:<14}{model:<6}ok")
        finally:
            server.terminate()
            server.stderr.read()
        assert server.wait(60) == 0, server.returncode
        print("stopped with status 0")


if __name__ == "__main__":
    main()

"""A transformer block over two ranks: torch.distributed, gloo, the results of one process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.long_run import mostly_long
from support.server_process import SOURCE, ServerProcess, serving
from support.waiting import wait_until

WIDTH, HEADS, HIDDEN, RANKS = 32, 4, 64, 2
_CONFIG = """
backend: "%s"
max_batch_size: 4
input [ { name: "%s" data_type: TYPE_FP32 dims: [ -1, 32 ] } ]
output [ { name: "%s" data_type: TYPE_FP32 dims: [ -1, 32 ] } ]
parameters { key: "tensor_parallel_size" value { string_value: "2" } }
parameters { key: "restart_wait_s" value { string_value: "150" } }
parameters { key: "torch_distributed" value { string_value: "gloo" } }
"""
_BLOCK = """
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

HERE = os.path.dirname(__file__)
WEIGHTS = os.path.join(HERE, "weights.pt")


class Block(torch.nn.Module):
    '''Attention and a feed-forward network. A rank has its part of the heads and of the hidden units.'''

    def __init__(self, width=32, heads=4, hidden=64):
        super().__init__()
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.heads, self.size = heads // self.ranks, width // heads
        own = width // self.ranks
        self.query, self.key, self.value = (torch.nn.Linear(width, own, bias=False) for _ in range(3))
        self.out = torch.nn.Linear(own, width, bias=False)
        self.up = torch.nn.Linear(width, hidden // self.ranks, bias=False)
        self.down = torch.nn.Linear(hidden // self.ranks, width, bias=False)
        if os.path.exists(WEIGHTS):
            self.load(torch.load(WEIGHTS))

    def load(self, weights):
        '''Take the own part of the weights: rows of the first layers (columns of x), columns of the second.'''
        rank = dist.get_rank() if dist.is_initialized() else 0
        for name, parameter in self.named_parameters():
            part = weights[name].chunk(self.ranks, dim=1 if name.startswith(("out", "down")) else 0)[rank]
            parameter.data.copy_(part)

    def add_up(self, partial):
        if self.ranks > 1:
            dist.all_reduce(partial)
        return partial

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.add_up(self.out(attended.transpose(1, 2).reshape(batch, length, -1)))
        return x + self.add_up(self.down(F.gelu(self.up(x))))
"""
_MODEL = (
    _BLOCK
    + """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert dist.get_world_size() == int(args["world_size"])
        self.rank = dist.get_rank()
        torch.set_num_threads(1)
        self.block = Block()
        with open(os.path.join(HERE, f"pid_{self.rank}"), "w") as file:
            file.write(str(os.getpid()))

    def execute(self, requests):
        x = [torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()) for request in requests]
        while self.rank == 1 and x[0][0, 0, 0] == 99 and not os.path.exists(os.path.join(HERE, "go")):
            open(os.path.join(HERE, "waits"), "w").close()
            time.sleep(0.01)
        with torch.inference_mode():
            y = [self.block(each) for each in x]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each.numpy())]) for each in y]
"""
)


def reference() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The block in one process, and its weights."""
    scope: dict[str, object] = {"__name__": "block", "__file__": "block.py"}
    exec(compile(_BLOCK, "block.py", "exec"), scope)
    torch.manual_seed(0)
    block = scope["Block"]()  # type: ignore[operator]
    return block, block.state_dict()


def write_models(root: Path, further: str = "") -> None:
    """Write the block as a Python model, and as a module of PyTorch."""
    for name, config, source in (
        ("block", _CONFIG % ("python", "X", "Y"), _MODEL),
        ("module", _CONFIG % ("pytorch", "x", "OUTPUT__0"), _BLOCK),
    ):
        version = root / name / "1"
        version.mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config + further.replace("NAME", name))
        (version / "model.py").write_text(source)
        torch.save(reference()[1], version / "weights.pt")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return root / "block" / "1"


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environment = {"OMP_NUM_THREADS": "1"}
    flags = [f"--model-repository={home.parents[1]}"]
    with serving(tmp_path_factory.mktemp("server") / "log", *flags, environment=environment) as running:
        running.wait_ready()
        yield running


def infer(server: ServerProcess, x: np.ndarray, model: str = "block") -> np.ndarray:
    names = ("X", "Y") if model == "block" else ("x", "OUTPUT__0")
    with httpclient.InferenceServerClient(server.http_url, network_timeout=200.0) as client:
        tensor = httpclient.InferInput(names[0], list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return client.infer(model, [tensor]).as_numpy(names[1])


def assert_is_right(server: ServerProcess, seed: int, model: str = "block") -> None:
    x = np.random.default_rng(seed).standard_normal((2, 7, WIDTH)).astype(np.float32)
    with torch.inference_mode():
        expected = reference()[0](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(infer(server, x, model), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["block", "module"])
def test_ranks_give_the_results_of_one_process(server: ServerProcess, model: str) -> None:
    for seed in range(3):
        assert_is_right(server, seed, model)


def test_killed_rank_fails_the_request_and_restarts(server: ServerProcess, home: Path) -> None:
    before = [int((home / f"pid_{rank}").read_text()) for rank in range(RANKS)]
    x = np.full((1, 3, WIDTH), 99, np.float32)
    with ThreadPoolExecutor() as threads:
        executing = threads.submit(infer, server, x)
        wait_until((home / "waits").exists, "the batch never reached rank 1")
        os.kill(before[1], signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="rank 1 was killed by SIGKILL while it executed"):
            executing.result()
    assert_is_right(server, 4)
    after = [int((home / f"pid_{rank}").read_text()) for rank in range(RANKS)]
    assert not {*before} & {*after}


@pytest.mark.parametrize("model", mostly_long(["block", "module"], "block".__eq__))
def test_two_nodes_give_the_same_results(model: str, tmp_path: Path) -> None:
    """Both kinds of workers join a group in the same way, on one node and on two."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for node in ("first", "second"):
        write_models(
            tmp_path / node,
            f"""
parameters {{ key: "nnodes" value {{ string_value: "2" }} }}
parameters {{ key: "rendezvous" value {{ string_value: "127.0.0.1:{port}" }} }}
""",
        )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(SOURCE)}
    flags = [f"--model-repository={tmp_path / 'first'}", "--model-control-mode=explicit", f"--load-model={model}"]
    command = [sys.executable, "-m", "naiad", "rank", str(tmp_path / "second" / model), "--node-rank=1"]
    with (tmp_path / "rank.log").open("wb") as output:
        other = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        with serving(tmp_path / "log", *flags, environment=environment) as running:
            running.wait_ready()
            assert_is_right(running, 5, model)
            # The rank of the other node dies; the group restarts, and its process groups meet again.
            (worker,) = psutil.Process(other.pid).children()
            worker.kill()
            running.wait_log(r"rank 1 was killed by SIGKILL \(node 1\)")
            assert_is_right(running, 6, model)
    finally:
        other.kill()
        other.wait()

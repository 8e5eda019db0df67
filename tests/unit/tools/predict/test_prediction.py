"""A run that continues an interrupted one has the same rows in front of it, or is refused."""

import json
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict import PredictJob, predict, row_flow
from naiad.tools.predict.files import row_reader
from support.batch_parts import Doubling, served


class Ending(Doubling):
    """Ends the run at a row."""

    last = 8

    async def infer(self, inputs, outputs):
        if (inputs["X"] >= self.last).any():
            raise RuntimeError("the machine is gone")
        return await super().infer(inputs, outputs)


def test_file_that_can_be_read_again_does_not_move_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("abc"):
        lines = [json.dumps({"X": [4 * number + row, 0]}) for row in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    job = PredictJob("models", "m", [str(tmp_path / "*.jsonl")], str(tmp_path / "out.csv"), outputs=("Y",))
    real = row_reader.open_source

    def refuse(files, *rest):
        if files.path.name == "a.jsonl":  # which has the same size and time when its owner allows to read it
            raise PermissionError(13, "Permission denied", str(files.path))
        return real(files, *rest)

    monkeypatch.setattr(row_flow, "CHECKPOINT_S", 0.0)
    with monkeypatch.context() as patch, served(Ending()):
        patch.setattr(row_reader, "open_source", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the machine is gone"):
                predict(job)
    with served(Doubling()), pytest.raises(InferError, match=r"files that cannot be read was .*a\.jsonl.* --restart"):
        predict(job)

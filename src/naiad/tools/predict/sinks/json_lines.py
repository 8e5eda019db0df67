"""Output as `.jsonl`: an object for each row; outputs of failed rows are null."""

from collections.abc import Mapping
from pathlib import Path

import orjson

from naiad.tools.predict.rows.row_outputs import OutputBlock
from naiad.tools.predict.sinks.sink import Layout, TextSink, check_names, is_single
from naiad.tools.predict.sinks.texts import json_rows, key_texts


class JsonLinesSink(TextSink):
    """Writes `{"row":0,"KEY":...,"OUTPUT":...}`."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], layout: Layout) -> None:
        """Raises InferError for two members of one name."""
        names = [layout.row_name, *layout.keys, *layout.outputs]
        check_names(names)
        super().__init__(folder, "rows.jsonl", sizes)
        self._layout = layout
        members = b",".join(orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in names)
        self._line = b"{" + members + b"}\n"

    def append(self, block: OutputBlock) -> None:
        """Write rows."""
        layout, count = self._layout, block.count
        columns = [[b"%d" % row for row in range(block.first, block.first + count)]]
        columns += [key_texts(block.keys[key]) for key in layout.keys]
        for name, tensor in layout.outputs.items():
            texts = json_rows(block.columns[name], count, is_single=is_single(tensor))
            for offset in block.failures:
                texts[offset] = b"null"
            columns.append(texts)
        self.part.write(b"".join([self._line % row for row in zip(*columns, strict=True)]))

"""Reads prompts and computes next tokens of many rows at once, on one graph with its caches."""

import logging
from collections.abc import Sequence

import numpy as np

from naiad.backend.framework import ModelFile
from naiad.backend.onnx.sessions import ort_message
from naiad.backend.onnx_decoder.decoder_graph import DecoderGraph
from naiad.backend.onnx_decoder.kv_cache import CacheBlock, RowCache
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

_TOLERANCE = 1e-2
"""Of logits that should be equal, as a share of the distance from the smallest to the largest."""


class Decoder:
    """Not thread-safe: one thread computes."""

    def __init__(self, graph: DecoderGraph, most_tokens: int) -> None:
        """`most_tokens` is the number that the caches of all rows may have together."""
        self._graph = graph
        self._block = CacheBlock(graph.tensors.caches, most_tokens)

    def read(self, rows: Sequence[tuple[RowCache, Sequence[int]]]) -> Array:
        """Add tokens of prompts to the caches of rows; return the logits after the last of each, [rows, vocabulary].

        Several rows must have no tokens yet. Raises what ONNX Runtime raises; the rows are as before then.
        """
        caches = self._graph.tensors.caches
        past = rows[0][0].length
        width = max(len(tokens) for _, tokens in rows)
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros((len(rows), past + width), np.int64)
        positions = np.zeros((len(rows), width), np.int64)
        for number, (_, tokens) in enumerate(rows):
            start = width - len(tokens)
            ids[number, start:] = tokens
            positions[number, start:] = np.arange(past, past + len(tokens))
            mask[number, start:] = 1
        pasts = rows[0][0].arrays or [np.empty(each.shape(len(rows), 0), each.datatype.numpy) for each in caches]
        presents = [np.empty(each.shape(len(rows), past + width), each.datatype.numpy) for each in caches]
        logits = self._graph.run(ids, mask, positions, pasts, presents)
        for number, (row, tokens) in enumerate(rows):
            row.length = past + len(tokens)
            if len(rows) == 1:
                row.arrays = presents
            else:
                own = slice(number, number + 1)
                row.arrays = [present[own, :, width - len(tokens) :].copy() for present in presents]
        return logits

    def step(self, rows: Sequence[RowCache], last_tokens: Sequence[int]) -> Array:
        """Add the last token of each row to its cache; return the logits after it, [rows, vocabulary].

        Raises what ONNX Runtime raises; the rows are as before then.
        """
        order = self._block.arrange(rows)
        tokens = {id(row): token for row, token in zip(rows, last_tokens, strict=True)}
        ids = np.array([[tokens[id(row)]] for row in order], np.int64)
        positions = np.array([[row.length] for row in order], np.int64)
        logits = self._graph.run(ids, self._block.mask(), positions, self._block.pasts(), self._block.room())
        self._block.advance()
        places = {id(row): number for number, row in enumerate(order)}
        found: Array = logits[[places[id(row)] for row in rows]]
        return found

    def forget(self, row: RowCache) -> None:
        """Free the cache of a row that has ended."""
        self._block.forget(row)


def try_decoder(graph: DecoderGraph, file: ModelFile) -> bool:
    """Return whether rows of different lengths may be padded. Raises InferError for a graph that does not decode.

    Three tokens at once must have the logits of three tokens one by one, and rows together the logits of rows alone.
    """
    vocabulary = graph.tensors.vocabulary
    long, short = [number % vocabulary for number in (1, 2, 3)], [4 % vocabulary, 5 % vocabulary]
    try:
        whole = [_read(graph, [each])[0] for each in (long, short)]
        alone = Decoder(graph, 4)
        row = RowCache()
        steps = alone.read([(row, long[:1])])[0]
        for token in long[1:]:
            steps = alone.step([row], [token])[0]
    except Exception as error:  # ONNX Runtime raises a different class for each status
        raise file.error(f"cannot execute a prompt of three tokens: {ort_message(error)}") from error
    if not _are_close(whole[0], steps):
        raise file.error(
            "has other logits for three tokens at once than for one after the other: its cache cannot be continued. "
            "Export it as a decoder with past, and with position_ids"
        )
    if graph.tensors.mask is None:
        return False
    try:
        both = _padded(graph, long, short)
    except Exception as error:  # as above
        _log.info("%s rows of different lengths are not executed together: %s", file.opening, ort_message(error))
        return False
    expected = [whole[0], whole[1], whole[0], whole[1]]
    return all(_are_close(found, wanted) for found, wanted in zip(both, expected, strict=True))


def _read(graph: DecoderGraph, prompts: Sequence[Sequence[int]]) -> Array:
    return Decoder(graph, 8).read([(RowCache(), prompt) for prompt in prompts])


def _padded(graph: DecoderGraph, long: Sequence[int], short: Sequence[int]) -> Sequence[Array]:
    """Return the logits after two prompts that are read together, and after their last tokens as a common step."""
    decoder = Decoder(graph, 8)
    rows = RowCache(), RowCache()
    decoder.read([(rows[0], long[:-1]), (rows[1], short[:-1])])
    stepped = decoder.step(rows, [long[-1], short[-1]])
    return [*_read(graph, [long, short]), *stepped]


def _are_close(found: Array, wanted: Array) -> bool:
    scale = max(float(np.ptp(wanted)), 1e-6)
    return bool(np.max(np.abs(found - wanted)) <= _TOLERANCE * scale)

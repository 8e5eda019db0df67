"""The text of one choice, out of pieces that end anywhere: in a character, in a stop string."""

import codecs
from collections.abc import Sequence

from naiad.core.tensor import Buffer


class TextStream:
    """Decodes pieces of UTF-8 and ends the text before the first stop string.

    The text does not depend on where one piece ends and the next begins. Of several stop strings the one that is
    complete first counts, and of these the longest. Bytes that are not UTF-8 become U+FFFD.
    """

    __slots__ = ("_decoder", "_held", "_stops", "is_stopped")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._held = ""
        """The end of the text, which may be the beginning of a stop string."""
        self.is_stopped = False
        """Whether a stop string was found: no more text follows."""

    def feed(self, piece: Buffer) -> str:
        """Return the text that a piece completes; it may be empty."""
        return self._take(self._decoder.decode(bytes(piece)), is_last=False)

    def feed_text(self, text: str) -> str:
        """Return the text that a decoded piece completes; not together with `feed`."""
        return self._take(text, is_last=False)

    def end(self) -> str:
        """Return the rest of the text."""
        return self._take(self._decoder.decode(b"", final=True), is_last=True)

    def _take(self, text: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        cut = self._first_stop(text)
        if cut is not None:
            self.is_stopped = True
            self._held = ""
            return text[:cut]
        held = 0 if is_last else self._possible_start(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _first_stop(self, text: str) -> int | None:
        """Return where the stop string begins that is complete first; None without one."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_start(self, text: str) -> int:
        """Return the length of the longest end of the text with which a stop string begins."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

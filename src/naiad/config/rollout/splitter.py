"""The split of requests between two versions.

Each request has a position from 0 to 2^32; those below the share of the canary go to it. The position of a sticky key
is its hash: while the weight only grows, a key that has reached the canary stays there. Other positions come from a
Weyl sequence (multiples of the golden ratio), which is even over any number of requests and has no period that a
client's own pattern could share.
"""

import hashlib

_RANGE = 1 << 32
_MASK = _RANGE - 1
_GOLDEN = 0x9E3779B9
"""2^32 / the golden ratio, odd: the sequence visits every position once."""


def threshold(percent: float) -> int:
    """Return the first position that is not part of a share, from 0 for none to 2^32 for all."""
    return round(percent / 100 * _RANGE)


def position_of(salt: bytes, key: str) -> int:
    """Return the position of a sticky key; `salt` distinguishes rollouts, so that each begins with other keys."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=4, key=salt)
    return int.from_bytes(digest.digest(), "little")


def salt_of(model: str, canary: int | None) -> bytes:
    """Return the salt of a rollout."""
    return hashlib.blake2b(f"{model}\0{canary}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


class EvenSplit:
    """Takes a share of events, evenly distributed."""

    __slots__ = ("_position",)

    def __init__(self, start: int = 0) -> None:
        self._position = start & _MASK

    def takes(self, share: int) -> bool:
        """Return whether the next event belongs to a share (a `threshold`)."""
        # hot: once a request of a model with a rollout
        self._position = position = (self._position + _GOLDEN) & _MASK
        return position < share

"""Changes to bytes that no format knows of, and pieces for those that do."""

from collections.abc import Sequence
from random import Random

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x0A, 0x22)


def mutate_bytes(data: bytes, random: Random, tokens: Sequence[bytes] = ()) -> bytes:
    """Return `data` with one change: a byte, a piece that is missing, twice there or moved, or a token."""
    begin = random.randint(0, len(data))
    end = min(len(data), begin + random.choice((1, 1, 2, 4, 8, 32, 256)))
    piece = data[begin:end]
    action = random.randrange(7 if tokens else 5)
    if action == 0:
        return data[:begin] + data[end:]
    if action == 1:
        return data[:begin] + piece * random.choice((2, 2, 3, 50)) + data[end:]
    if action == 2:
        at = random.randint(0, len(data))
        return data[:at] + piece + data[at:]
    if action == 3:
        return data[:begin] + bytes(random.choices(_EDGES, k=random.randint(1, 4))) + data[begin:]
    if action == 4:
        return data[:begin] + bytes(byte ^ 1 << random.randrange(8) for byte in piece[:1]) + data[begin + 1 :]
    token = random.choice(tokens)
    return data[:begin] + token + data[begin if action == 5 else end :]


def mutate_pieces(pieces: list[bytes], random: Random) -> list[bytes]:
    """Return the list with one whole piece gone, twice there or moved."""
    if not pieces:
        return pieces
    at = random.randrange(len(pieces))
    action = random.randrange(3)
    changed = list(pieces)
    if action == 0:
        del changed[at]
    elif action == 1:
        changed.insert(random.randint(0, len(pieces)), pieces[at])
    else:
        changed.insert(random.randrange(len(pieces)), changed.pop(at))
    return changed


def cut(data: bytes, random: Random, most: int = 12) -> list[bytes]:
    """Return `data` in pieces, as it may come from a socket."""
    edges = sorted(random.randint(0, len(data)) for _ in range(random.randint(1, most)))
    return [data[begin:end] for begin, end in zip([0, *edges], [*edges, len(data)], strict=True)]

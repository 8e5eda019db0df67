"""The file of `--api-key-file`: who may ask what, by the SHA-256 of a secret.

One key a line, `<name> <category>,... <sha256 of the key>`; `all` stands for every category. Where the hash would be,
`-` makes the categories open to everyone. Empty lines and those that begin with `#` mean nothing.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from naiad.config.security import CATEGORIES

METRICS = "metrics"
KEY_CATEGORIES = (*CATEGORIES, METRICS)
"""What a key can open: the categories of the protocols, and the metrics port."""
ALL = "all"
OPEN = "-"

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_MAX_KEYS = 1024


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its digest; the key itself is known to its holder only."""

    name: str
    categories: frozenset[str]
    digest: bytes = field(repr=False)

    def opens(self, category: str) -> bool:
        """Tell whether the key is for a category."""
        return category in self.categories or ALL in self.categories


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The content of a key file."""

    keys: Sequence[ApiKey] = ()
    open_categories: frozenset[str] = frozenset()
    """What is answered without a key."""


def digest_of(key: str | bytes) -> bytes:
    """Return what the file holds of a key. The key is long and random, so one round of SHA-256 does."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def format_line(name: str, categories: Iterable[str], key: str) -> str:
    """Return the line of a key."""
    return f"{name} {','.join(categories)} {digest_of(key).hex()}"


def parse_api_keys(text: str) -> ApiKeys:
    """Return the keys of a file. Raises ValueError that names the line; it never shows what stands for the hash."""
    keys: list[ApiKey] = []
    open_categories: set[str] = set()
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise ValueError(f"line {number}: expected '<name> <category>,... <sha256>', got {len(words)} words")
        name, categories = words[0], parse_categories(words[1], f"line {number}: ")
        if words[2] == OPEN:
            open_categories |= categories
            continue
        if name in names:
            raise ValueError(f"line {number}: there is a key '{name}' already")
        if not _DIGEST.fullmatch(words[2]):
            raise ValueError(f"line {number}: key '{name}': not a SHA-256, which is 64 hexadecimal digits")
        names.add(name)
        keys.append(ApiKey(name, categories, bytes.fromhex(words[2])))
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"{len(keys)} keys; the most are {_MAX_KEYS}")
    return ApiKeys(tuple(keys), frozenset(KEY_CATEGORIES) if ALL in open_categories else frozenset(open_categories))


def parse_categories(text: str, where: str = "") -> frozenset[str]:
    """Return the categories of a list with commas. Raises ValueError, its text beginning with `where`."""
    categories = frozenset(text.split(","))
    for category in sorted(categories):
        if category != ALL and category not in KEY_CATEGORIES:
            known = ", ".join((*KEY_CATEGORIES, ALL))
            raise ValueError(f"{where}unknown category '{category}'; known are {known}")
    return categories

"""Access options: TLS, restricted parts of the protocols, and the key file of `--api-key-file`.

The key file has one key per line, `<name> <category>,... <sha256 of the key>`; `all` stands for every category. `-`
in place of the hash opens the categories to all clients. Limits of a key may follow its hash: `requests-per-second=`,
`bytes-per-second=`, `in-flight=`. Empty lines and lines that begin with `#` are ignored.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from naiad.core.errors import excerpt
from naiad.options.flag import ValueKind, option

Category = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""The parts of the protocols that can be restricted. Triton: --http-restricted-api, --grpc-restricted-protocol."""
_CATEGORIES = ", ".join(CATEGORIES)
GRPC_HEADER_PREFIX = "triton-grpc-protocol-"
_CASE_SENSITIVE = "(?-i)"
_HOST = re.compile(r"\*|[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+|\*|null")


@dataclass(frozen=True, slots=True)
class RequiredHeader:
    """A header that requests must have, with exactly this value."""

    name: str
    value: str = field(repr=False)


def parse_restrictions(texts: Iterable[str], noun: str, header_prefix: str = "") -> dict[str, RequiredHeader]:
    """Return the required header of each category.

    Each text is `<category>,...:<header>=<value>`; `noun` names a category in messages, as in Triton (api, protocol).
    Raises ValueError.
    """
    required: dict[str, RequiredHeader] = {}
    for text in texts:
        names, _, rest = text.partition(":")
        header, _, value = rest.partition("=")
        if not (names and header and value):
            raise ValueError(f"format is <{noun}>,<{noun}>:<header>=<value>, got '{text}'")
        for name in names.split(","):
            if name not in CATEGORIES:
                raise ValueError(f"unknown restricted {noun} '{name}'; known are {', '.join(CATEGORIES)}")
            if name in required:
                raise ValueError(f"restricted {noun} '{name}' can not be specified in multiple config groups")
            required[name] = RequiredHeader(header_prefix + header, value)
    return required


def _http_restrictions(texts: Sequence[str]) -> dict[str, RequiredHeader]:
    return parse_restrictions(texts, "api")


def _split_hosts(texts: Sequence[str]) -> Sequence[str]:
    return tuple(host for text in texts for host in text.split(","))


def _grpc_restrictions(texts: Sequence[str]) -> dict[str, RequiredHeader]:
    return parse_restrictions(texts, "protocol", GRPC_HEADER_PREFIX)


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Which requests are accepted."""

    http_restricted: Mapping[str, RequiredHeader] = option(
        {},
        "http-restricted-api",
        f"Require this header for the HTTP routes of these categories; repeatable. Categories: {_CATEGORIES}.",
        kind=ValueKind.RESTRICTION,
        repeat=True,
        read=_http_restrictions,
    )
    grpc_restricted: Mapping[str, RequiredHeader] = option(
        {},
        "grpc-restricted-protocol",
        "Require the metadata triton-grpc-protocol-<header> for the gRPC calls of these categories; repeatable. "
        f"Categories: {_CATEGORIES}.",
        kind=ValueKind.RESTRICTION,
        repeat=True,
        read=_grpc_restrictions,
    )
    api_key_file: str = option(
        "",
        "api-key-file",
        "naiad: require an API key of this file, over HTTP, gRPC and on the metrics port; naiad key new prints a "
        "line of it. Changes apply at once.",
        summary="Require an API key of this file; see naiad key new.",
    )
    allow_client_model_files: bool = option(
        False,
        "allow-client-model-files",
        "naiad: let every client that may load models send model files, including Python code. Otherwise this "
        "needs an API key, or a restriction of the category model-repository.",
    )
    http_cors_origins: Sequence[str] = option(
        (),
        "http-cors-origin",
        "naiad: let web pages of this origin call the server over HTTP; repeatable, * for all, which allows "
        "inference but no change of the server. Requests of all other pages are refused.",
        kind=ValueKind.ORIGIN,
        repeat=True,
    )
    http_allowed_hosts: Sequence[str] = option(
        (),
        "http-allowed-hosts",
        "naiad: answer HTTP requests for these hosts (the Host field) only; repeatable, * for all. A server on a "
        "loopback address always answers for localhost, 127.0.0.1, [::1] and its address.",
        default_text="all, on a loopback address numbers and names without a dot",
        kind=ValueKind.HOSTS,
        repeat=True,
        read=_split_hosts,
    )

    @property
    def shows_index_to_all(self) -> bool:
        """Whether every client may read the repository index, so that errors may name models."""
        return not self.api_key_file and "model-repository" not in {**self.http_restricted, **self.grpc_restricted}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS of one endpoint; files are PEM."""

    use_ssl: bool = option(
        False, "use-ssl", "TLS for {protocol}.", summary="TLS; needs --{prefix}-server-cert and -key."
    )
    use_ssl_mutual: bool = option(
        False, "use-ssl-mutual", "TLS for {protocol} with client certificates signed by --{prefix}-root-cert."
    )
    """Triton: turns TLS on by itself."""
    server_cert: str = option("", "server-cert", "PEM file of the server's certificate chain for {protocol}.")
    server_key: str = option("", "server-key", "PEM file of the certificate's key.")
    root_cert: str = option(
        "", "root-cert", "PEM file of the root certificates for client certificates, for --{prefix}-use-ssl-mutual."
    )

    @property
    def is_on(self) -> bool:
        """Whether the endpoint uses TLS."""
        return self.use_ssl or self.use_ssl_mutual

    def is_at_least(self, other: "TlsOptions") -> bool:
        """Return whether these options reject every client that `other` rejects."""
        if not other.is_on:
            return True
        return self.is_on and (
            not other.use_ssl_mutual or (self.use_ssl_mutual and self.root_cert == other.root_cert)
        )

    @property
    def files(self) -> tuple[str, ...]:
        """All TLS files of the endpoint."""
        return tuple(filter(None, (self.server_cert, self.server_key, self.root_cert if self.use_ssl_mutual else "")))

    def unused(self, protocol: str) -> list[str]:
        """Return the given flags that have no effect without another flag. Triton ignores them."""
        files = {"root-cert": self.root_cert} if not self.use_ssl_mutual else {}
        if not self.is_on:
            files |= {"server-cert": self.server_cert, "server-key": self.server_key}
        return [f"--{protocol}-{name}" for name, value in files.items() if value]

    def problem(self, protocol: str) -> str:
        """Return the error in the combination of flags `--{protocol}-...`; empty if there is none."""
        if not self.is_on:
            return ""
        asked = f"--{protocol}-use-ssl-mutual" if self.use_ssl_mutual else f"--{protocol}-use-ssl"
        missing = [
            f"--{protocol}-{name}"
            for name, value in (("server-cert", self.server_cert), ("server-key", self.server_key))
            if not value
        ]
        if self.use_ssl_mutual and not self.root_cert:
            missing.append(f"--{protocol}-root-cert")
        return f"{asked} needs {' and '.join(missing)}: the path of a PEM file" if missing else ""


def compile_header_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the compiled header forward pattern, None for an empty one. Raises re.error.

    Triton: case does not matter unless the pattern begins with `(?-i)`.
    """
    if not pattern:
        return None
    if pattern.startswith(_CASE_SENSITIVE):
        return re.compile(pattern.removeprefix(_CASE_SENSITIVE))
    return re.compile(pattern, re.IGNORECASE)


def check_origin(origin: str) -> str:
    """Return an origin of --http-cors-origin unchanged. Raises ValueError unless browsers could send it."""
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("is not an origin; write scheme://host or scheme://host:port without a path, or *")
    return origin


def check_hosts(hosts: str) -> str:
    """Return the value of --http-allowed-hosts unchanged. Raises ValueError unless each is a host without a port."""
    for host in hosts.split(","):
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"has '{host}', which is no host; write a name or an address without scheme and port, or *"
            )
    return hosts


METRICS: Literal["metrics"] = "metrics"
KEY_CATEGORIES = (*CATEGORIES, METRICS)
"""Categories of a key: parts of the protocols, and the metrics port."""
ALL = "all"
OPEN = "-"

_AMOUNT = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_MAX_KEYS = 1024


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the clients of a key may use together; 0 for no limit."""

    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0
    """Bytes of requests and responses."""
    in_flight: int = 0
    """Requests without a response."""


_LIMIT_FIELDS = {
    "requests-per-second": "requests_per_s",
    "bytes-per-second": "bytes_per_s",
    "in-flight": "in_flight",
}
_NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, stored by its digest; only the client knows the key itself."""

    name: str
    categories: frozenset[str]
    digest: bytes = field(repr=False)
    limits: KeyLimits = _NO_LIMITS

    def opens(self, category: str) -> bool:
        """Return whether the key is valid for a category."""
        return category in self.categories or ALL in self.categories


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The content of a key file."""

    keys: Sequence[ApiKey] = ()
    open_categories: frozenset[str] = frozenset()
    """Categories that need no key."""


def digest_of(key: str | bytes) -> bytes:
    """Return the digest of a key for the file. The key is long and random, so one round of SHA-256 is enough."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def format_line(name: str, categories: Iterable[str], key: str, limits: Sequence[str] = ()) -> str:
    """Return the line of a key; `limits` are words as `parse_limits` takes them."""
    return " ".join((name, ",".join(categories), digest_of(key).hex(), *limits))


def parse_api_keys(text: str) -> ApiKeys:
    """Return the keys of a file. Raises ValueError that names the line, without the text in place of the hash."""
    keys: list[ApiKey] = []
    open_categories: set[str] = set()
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3:
            raise ValueError(f"line {number}: expected '<name> <category>,... <sha256>', got {len(words)} words")
        name, categories = words[0], parse_categories(words[1], f"line {number}: ")
        if words[2] == OPEN:
            if words[3:]:
                raise ValueError(f"line {number}: '{words[3]}' limits no key; leave it out, or put a hash before it")
            open_categories |= categories
            continue
        if name in names:
            raise ValueError(f"line {number}: duplicate key '{name}'")
        if not _DIGEST.fullmatch(words[2]):
            raise ValueError(f"line {number}: key '{name}': not a SHA-256, which is 64 hexadecimal digits")
        names.add(name)
        limits = parse_limits(words[3:], f"line {number}: key '{name}': ")
        keys.append(ApiKey(name, categories, bytes.fromhex(words[2]), limits))
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"{len(keys)} keys; the maximum is {_MAX_KEYS}")
    return ApiKeys(tuple(keys), frozenset(KEY_CATEGORIES) if ALL in open_categories else frozenset(open_categories))


def parse_limits(words: Sequence[str], where: str = "") -> KeyLimits:
    """Return the limits of `requests-per-second=10 in-flight=4`. Raises ValueError that begins with `where`."""
    found: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        limit = _LIMIT_FIELDS.get(name)
        if limit is None:
            raise ValueError(f"{where}unknown limit '{excerpt(name)}'; known are {', '.join(_LIMIT_FIELDS)}")
        if limit in found:
            raise ValueError(f"{where}limit '{name}' is given twice")
        if not _AMOUNT.fullmatch(text) or not float(text) or (limit == "in_flight" and "." in text):
            kind = "a whole number above 0" if limit == "in_flight" else "a number above 0"
            raise ValueError(f"{where}limit '{name}' is '{excerpt(text)}'; use {kind}, or leave it out for no limit")
        found[limit] = float(text)
    return KeyLimits(found.get("requests_per_s", 0.0), found.get("bytes_per_s", 0.0), int(found.get("in_flight", 0)))


def parse_categories(text: str, where: str = "") -> frozenset[str]:
    """Return the categories of a comma-separated list. Raises ValueError with a text that begins with `where`."""
    categories = frozenset(text.split(","))
    for category in sorted(categories):
        if category != ALL and category not in KEY_CATEGORIES:
            known = ", ".join((*KEY_CATEGORIES, ALL))
            raise ValueError(f"{where}unknown category '{category}'; known are {known}")
    return categories

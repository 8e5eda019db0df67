"""What the clients of each API key have used, and their limits.

Time is an argument. Requests and bytes per second are token buckets that hold what a second allows. The size of a
response is known only afterwards, so bytes may go into debt: the next request waits until the debt is paid.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from naiad.options.network.access_options import ApiKey, KeyLimits


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that a request exceeds."""

    limit: str
    message: str
    retry_after_s: int


class TokenBucket:
    """Allows `rate` units per second, and as many at once."""

    __slots__ = ("_capacity", "_level", "_rate", "_updated_ns")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._capacity = max(rate, 1.0)
        self._level = self._capacity
        self._updated_ns = 0

    def wait_s(self, needed: float, now_ns: int) -> float:
        """Return the seconds until `needed` units are there; 0 if they are."""
        if self._updated_ns:
            gained = (now_ns - self._updated_ns) / 1e9 * self._rate
            self._level = min(self._capacity, self._level + gained)
        self._updated_ns = now_ns
        return max(0.0, needed - self._level) / self._rate

    def take(self, amount: float) -> None:
        """Take units; the level may fall below 0."""
        self._level -= amount


class KeyUsage:
    """Counts and limits of one key."""

    def __init__(self, name: str, limits: KeyLimits, share: int = 1) -> None:
        """`share` is the number of processes that share the limits: each allows its part."""
        self.name = name
        self.request_count = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.in_flight = 0
        self.limited_counts = {"requests-per-second": 0, "bytes-per-second": 0, "in-flight": 0}
        self.set_limits(limits, share)

    def set_limits(self, limits: KeyLimits, share: int = 1) -> None:
        """Replace the limits; the counts stay."""
        self.limits = limits
        self._requests = TokenBucket(limits.requests_per_s / share) if limits.requests_per_s else None
        self._bytes = TokenBucket(limits.bytes_per_s / share) if limits.bytes_per_s else None
        self._most_in_flight = -(-limits.in_flight // share)
        self.has_limits = limits != KeyLimits()

    def exceeded(self, now_ns: int, *, is_new: bool = True) -> Exceeded | None:
        """Return the limit that one more request exceeds, and count it as limited; None if the key has room.

        `is_new` is false for a further message of a stream, which is in flight already.
        """
        limits = self.limits
        if is_new and limits.in_flight and self.in_flight >= self._most_in_flight:
            return self._limited("in-flight", f"{limits.in_flight} requests in flight", 1.0)
        wait_s = self._requests.wait_s(1.0, now_ns) if self._requests is not None else 0.0
        if wait_s:
            return self._limited("requests-per-second", f"{limits.requests_per_s:g} requests per second", wait_s)
        wait_s = self._bytes.wait_s(1.0, now_ns) if self._bytes is not None else 0.0
        if wait_s:
            return self._limited("bytes-per-second", f"{limits.bytes_per_s:g} bytes per second", wait_s)
        return None

    def _limited(self, limit: str, amount: str, wait_s: float) -> Exceeded:
        self.limited_counts[limit] += 1
        seconds = max(1, math.ceil(wait_s))
        return Exceeded(
            limit, f"API key '{self.name}' has reached its limit of {amount}; try again in {seconds} s", seconds
        )

    def receive(self, size: int) -> None:
        """Count an admitted request of `size` bytes."""
        self.request_count += 1
        self.bytes_in += size
        if self._requests is not None:
            self._requests.take(1.0)
        if self._bytes is not None:
            self._bytes.take(size)

    def send(self, size: int) -> None:
        """Count bytes of responses."""
        self.bytes_out += size
        if self._bytes is not None:
            self._bytes.take(size)


class KeyTable:
    """The usage of every key of the key file, by name."""

    def __init__(self, keys: Iterable[ApiKey], process_count: int = 1) -> None:
        self._process_count = process_count
        self._usages: dict[str, KeyUsage] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Follow a change of the key file: keys that stay keep their counts, also if their limits change."""
        known, self._usages = self._usages, {}
        for key in keys:
            usage = known.get(key.name)
            if usage is None:
                usage = KeyUsage(key.name, key.limits, self._process_count)
            elif usage.limits != key.limits:
                usage.set_limits(key.limits, self._process_count)
            self._usages[key.name] = usage

    def usage(self, key: ApiKey) -> KeyUsage | None:
        """Return the usage of a key; None for one that the file has lost meanwhile."""
        return self._usages.get(key.name)

    def usages(self) -> Iterable[KeyUsage]:
        """Return the usage of every key."""
        return self._usages.values()

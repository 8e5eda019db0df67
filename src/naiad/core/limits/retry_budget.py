"""How many calls may be sent again: a share of all calls, and a few more. Pure: time is an argument.

Without it, servers that refuse calls because they are overloaded would get each call as often as there are servers.
"""

_WINDOW_S = 10
"""The calls and retries of the last ten seconds count."""
DEFAULT_SHARE = 0.2
LEAST_PER_S = 10
"""Retries each second that need no calls to earn them: a client with few calls must be able to retry."""


class RetryBudget:
    """Counts calls and retries of the last ten seconds."""

    def __init__(self, share: float = DEFAULT_SHARE, least_per_s: float = LEAST_PER_S) -> None:
        """`share` is the part of the calls that may be sent again, in addition to `least_per_s` each second."""
        self._share, self._least = share, least_per_s * _WINDOW_S
        self._calls = [0] * _WINDOW_S
        self._retries = [0] * _WINDOW_S
        self._second = 0
        """The newest second with an entry; the lists have an entry for each, at its number modulo ten."""

    def note_call(self, now_s: float) -> None:
        """Count a call."""
        self._advance(int(now_s))
        self._calls[self._second % _WINDOW_S] += 1

    def take(self, now_s: float) -> bool:
        """Count a retry and return True; False if no more are allowed now."""
        self._advance(int(now_s))
        if sum(self._retries) + 1 > self._least + self._share * sum(self._calls):
            return False
        self._retries[self._second % _WINDOW_S] += 1
        return True

    def _advance(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - _WINDOW_S + 1), second + 1):
            self._calls[passed % _WINDOW_S] = self._retries[passed % _WINDOW_S] = 0
        self._second = max(self._second, second)

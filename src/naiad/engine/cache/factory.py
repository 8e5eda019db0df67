"""Opens the response store of `--cache-config`."""

import math
from collections.abc import Mapping

from naiad.core.errors import invalid_argument
from naiad.engine.cache.response_store import LocalCache, ResponseStore


def open_store(cache_config: Mapping[str, Mapping[str, str]]) -> ResponseStore | None:
    """Return the store for the settings, None without settings. Raises InferError(INVALID_ARG).

    Triton: only one cache at a time.
    """
    if not cache_config:
        return None
    if len(cache_config) > 1:
        raise invalid_argument(f"only one cache can be used at a time, got {', '.join(sorted(cache_config))}")
    ((name, settings),) = cache_config.items()
    if name == "local":
        return _open_local(settings)
    if name == "redis":
        # Imported only for servers that use it.
        from naiad.engine.cache.redis_store import RedisStore

        return RedisStore(settings)
    raise invalid_argument(f"--cache-config: unknown cache '{name}', expected 'local' or 'redis'")


def _open_local(settings: Mapping[str, str]) -> LocalCache:
    unknown = sorted(settings.keys() - {"size", "ttl"})
    if unknown:
        raise invalid_argument(f"--cache-config local: unknown setting '{unknown[0]}'; known are size, ttl")
    size = settings.get("size", "")
    ttl = settings.get("ttl", "0")
    if not (size.isascii() and size.isdigit()):
        raise invalid_argument(f"--cache-config local: size is '{size}', expected a number of bytes: local,size=N")
    return LocalCache(int(size), _seconds(ttl))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise invalid_argument(f"--cache-config local: ttl is '{text}', expected seconds, 0 for no limit")
    return seconds

"""How many files the process may open: connections are files, and the usual limit of 1024 is soon reached."""

import logging
import resource

_log = logging.getLogger(__name__)

_OTHERS = 1024
"""For models, libraries, pipes to workers."""
_MANY = 4096
"""Connections beyond which a limit of the system is worth a line, but nobody needs to be warned."""


def raise_file_limit(connections: int) -> None:
    """Allow for so many connections, as far as the hard limit lets; the log tells when that is not enough."""
    wanted = connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError) as error:  # a kernel's own limit
            _log.warning("the limit of open files stays at %d: %s", soft, error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = max(0, soft - _OTHERS)
        _log.log(
            logging.WARNING if allowed < _MANY else logging.INFO,
            "the flags allow %d connections, the limit of open files only %d; raise it (ulimit -n, LimitNOFILE=) or "
            "lower --http-max-connections and --grpc-max-connections",
            connections,
            allowed,
        )

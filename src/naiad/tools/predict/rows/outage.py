"""Errors that say nothing about the rows of a file: its store or network, or this machine, cannot read it now."""

import errno

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.stored_object import StoreError

_CODES = (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED)
_NUMBERS = frozenset(
    {
        # A server of files is away, or answers too late.
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EREMOTEIO,
        # This process has too much open, or too little memory.
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)


def is_outage(error: Exception) -> bool:
    """Return whether another try, later, may read the same rows."""
    if isinstance(error, InferError):
        return isinstance(error, StoreError) or error.code in _CODES
    return isinstance(error, OSError) and error.errno in _NUMBERS


def is_outage_of_file(error: Exception) -> bool:
    """Return whether a file that was not read may be a whole one.

    So it is also after EIO, which a mount with a limit of time has for each file while its server is away.
    """
    return is_outage(error) or (isinstance(error, OSError) and error.errno == errno.EIO)

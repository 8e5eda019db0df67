"""Header fields of responses that all routes use."""

import time

from naiad.protocol.status_table import NOT_BEGUN

JSON_HEADERS = ((b"Content-Type", b"application/json"),)
RETRY_AFTER = (b"Retry-After", b"1")
"""Header field of every 503."""
REFUSED = (NOT_BEGUN, b"1")
"""Header field, and trailer, of a request that was refused before it began."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(wall_s: float) -> bytes:
    """Return a time, in seconds since 1970, as in `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7)."""
    # `email.utils` writes the same, but brings eight modules; `time.strftime` writes in the language of the process.
    at = time.gmtime(wall_s)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {clock} GMT".encode()

"""Messages to the service manager that has started the server: systemd's sd_notify protocol.

With `Type=notify` systemd sets $NOTIFY_SOCKET, a datagram socket, and with `WatchdogSec=` also $WATCHDOG_USEC.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger(__name__)

_WATCHDOG_SHARE = 0.5
"""systemd recommends to report at half of the watchdog's time."""


class ServiceManager:
    """Reports ready, stopping, and that the event loop runs; does nothing without $NOTIFY_SOCKET."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("NOTIFY_SOCKET", "")
        timeout_us = environ.get("WATCHDOG_USEC", "")
        is_watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_s = int(timeout_us) / 1e6 if is_watched and timeout_us.isdigit() else 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report regularly that the loop runs, if systemd has a watchdog for this process."""
        if self._path and self._watchdog_s:
            self.notify("WATCHDOG=1")
            loop.call_later(self._watchdog_s * _WATCHDOG_SHARE, self.watch, loop)

    def ready(self) -> None:
        """Report that the start is over."""
        self.notify("READY=1\nSTATUS=serving")

    def stopping(self) -> None:
        """Report that the server exits."""
        self.notify("STOPPING=1\nSTATUS=finishing requests")

    def notify(self, state: str) -> None:
        """Send one message; a failure is logged, because the server works without a service manager."""
        if not self._path:
            return
        # A leading @ stands for an abstract socket.
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("systemd was not notified at $NOTIFY_SOCKET %s: %s", self._path, error.strerror)

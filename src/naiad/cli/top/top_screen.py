"""The screen of `naiad top`: the alternate screen of the terminal, its size, and the keys that are pressed."""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The other screen, no cursor, and no new line for what is too long, such as names of wide characters."""
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def full_screen(
    on_key: Callable[[str], object], on_end: Callable[[int], object], on_change: Callable[[], object]
) -> Iterator[None]:
    """Use the whole terminal inside the context, and leave it as it was: after an exception, and after a signal.

    Called on the loop. `on_key` is called for each key; a terminal that has gone counts as the key q. `on_end` is
    called with the number of a signal that ends the program, and `on_change` when the screen must be drawn again.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    terminal = _Terminal(descriptor)

    def read() -> None:
        try:
            keys = os.read(descriptor, 64).decode("utf-8", "ignore")
        except OSError:
            keys = ""
        if not keys:
            loop.remove_reader(descriptor)  # it would always be ready
        for key in keys or "q":
            on_key(key)

    def suspend() -> None:
        terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)  # here the program stands until SIGCONT
        terminal.enter()
        on_change()

    handlers = {signal.SIGTSTP: suspend, signal.SIGWINCH: on_change}
    handlers |= {number: functools.partial(on_end, number) for number in _ENDING}
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        loop.add_reader(descriptor, read)
        terminal.enter()
        yield
    finally:
        loop.remove_reader(descriptor)
        for number in handlers:
            loop.remove_signal_handler(number)
        terminal.leave()


class _Terminal:
    """The terminal of the program; whether it still exists does not matter to those that call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)

    def enter(self) -> None:
        """Show the other screen, and read keys without a new line after them."""
        tty.setcbreak(self._descriptor)
        write(_ENTER)

    def leave(self) -> None:
        """Show the screen that was there before."""
        write(_LEAVE)
        with contextlib.suppress(termios.error):  # the terminal has gone, and its settings with it
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)


def write(text: str) -> None:
    """Write to the terminal. One that has gone is noticed when its keys are read, or by SIGHUP."""
    # Not by way of `sys.stdout`, which keeps what it could not write, and fails with it once more at the exit.
    rest = memoryview(text.encode(sys.stdout.encoding, "replace"))
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]


def screen_size() -> tuple[int, int]:
    """Return columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def show(lines: Sequence[str], headings: int, footer: str) -> None:
    """Replace what the screen shows; the lines in front of the rows are bold."""
    text = [f"{_BOLD}{line}{_PLAIN}" if number < headings else line for number, line in enumerate(lines)]
    write(_HOME + "".join(f"{line}{_END_OF_LINE}\r\n" for line in text) + f"{_END_OF_SCREEN}{footer}{_END_OF_LINE}")

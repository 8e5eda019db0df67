"""The screen of `naiad top`: the alternate screen of the terminal, its size, and the keys that are pressed."""

import asyncio
import contextlib
import os
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The other screen, no cursor, and no new line for what is too long, such as names of wide characters."""
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@contextlib.contextmanager
def full_screen(on_key: Callable[[str], object]) -> Iterator[None]:
    """Use the whole terminal inside the context, and call `on_key` for each key. Called on the loop.

    A terminal that has gone counts as the key q.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read() -> None:
        try:
            keys = os.read(descriptor, 64).decode("utf-8", "ignore")
        except OSError:
            keys = ""
        if not keys:
            loop.remove_reader(descriptor)  # it would always be ready
        for key in keys or "q":
            on_key(key)

    loop.add_reader(descriptor, read)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def screen_size() -> tuple[int, int]:
    """Return columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def show(lines: Sequence[str], headings: int, footer: str) -> None:
    """Replace what the screen shows; the lines in front of the rows are bold."""
    text = [f"{_BOLD}{line}{_PLAIN}" if number < headings else line for number, line in enumerate(lines)]
    sys.stdout.write(
        _HOME + "".join(f"{line}{_END_OF_LINE}\r\n" for line in text) + f"{_END_OF_SCREEN}{footer}{_END_OF_LINE}"
    )
    sys.stdout.flush()

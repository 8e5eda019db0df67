import mmap
from pathlib import Path

import pytest

from naiad.server.process.memory import FreedMemory

MIB = 1 << 20
SECOND_NS = 1_000_000_000


class Server:
    """A process whose memory and processor time the test sets."""

    def __init__(self, proc: Path) -> None:
        self._statm = proc / "self" / "statm"
        self._statm.parent.mkdir()
        self.freed = FreedMemory(proc)
        self.now_ns = 100 * SECOND_NS
        self.cpu_ns = 0
        self.set_mib(80)

    def set_mib(self, count: int) -> None:
        self._statm.write_text(f"999 {count * MIB // mmap.PAGESIZE} 0 0 0 0 0")

    def looks(self, count: int, cpu_share: float = 0.01) -> list[bool]:
        """Look once a second."""
        found = []
        for _ in range(count):
            self.now_ns += SECOND_NS
            self.cpu_ns += int(cpu_share * SECOND_NS)
            found.append(self.freed.is_due(self.now_ns, self.cpu_ns))
        return found


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server(tmp_path)
    assert server.looks(5) == [False] * 5
    return server


def test_memory_is_given_back_when_it_rests(server: Server) -> None:
    server.set_mib(130)
    assert server.looks(2) == [False, True]


def test_memory_that_stays_is_left_alone(server: Server) -> None:
    server.set_mib(130)
    server.looks(2)
    server.freed.note_returned(server.now_ns)
    assert server.looks(10) == [False] * 10


def test_small_growth_is_left_alone(server: Server) -> None:
    server.set_mib(95)
    assert server.looks(10) == [False] * 10


def test_busy_server_is_left_alone(server: Server) -> None:
    server.set_mib(130)
    assert server.looks(10, cpu_share=0.5) == [False] * 10
    assert server.looks(1) == [True]


def test_memory_is_given_back_again_after_a_while(server: Server) -> None:
    server.set_mib(130)
    server.looks(2)
    server.set_mib(80)
    server.freed.note_returned(server.now_ns)
    server.set_mib(130)
    assert server.looks(4) == [False, False, True, True]


def test_memory_is_left_alone_where_it_is_unknown(tmp_path: Path) -> None:
    freed = FreedMemory(tmp_path)
    assert not any(freed.is_due(second * SECOND_NS, 0) for second in range(1, 10))

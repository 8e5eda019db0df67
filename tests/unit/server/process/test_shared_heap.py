"""When the threads of a server share one heap, and that memory which was freed is used again."""

import subprocess
import sys

import pytest

from naiad.options.on_demand_options import OnDemandOptions
from naiad.server.process.shared_heap import share_heap

ON_DEMAND = OnDemandOptions(policy="on-demand")


@pytest.mark.parametrize(
    ("options", "environ", "is_shared"),
    [
        (ON_DEMAND, {}, True),
        (OnDemandOptions(memory_budget="1GB"), {"PATH": "/bin"}, True),
        (OnDemandOptions(), {}, False),
        (ON_DEMAND, {"MALLOC_ARENA_MAX": "2"}, False),
        (ON_DEMAND, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, False),
    ],
)
def test_servers_with_models_on_demand_share_one_heap(
    options: OnDemandOptions, environ: dict[str, str], is_shared: bool
) -> None:
    calls: dict[int, int] = {}

    def mallopt(name: int, value: int) -> int:
        calls[name] = value
        return 1

    assert share_heap(options, environ, mallopt) is is_shared
    assert calls == ({-8: 1, -3: 32 << 20, -1: 64 << 20} if is_shared else {})


def test_c_library_that_refuses_is_said() -> None:
    assert share_heap(ON_DEMAND, {}, lambda name, value: 0) is False


PROGRAM = """
import ctypes, resource, sys, threading
from naiad.options.on_demand_options import OnDemandOptions
from naiad.server.process.shared_heap import share_heap
if sys.argv[1] == "shared":
    print(share_heap(OnDemandOptions(policy="on-demand"), {}))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def load():
    pieces = [libc.malloc(4 << 20) for _ in range(3)]
    for piece in pieces:
        ctypes.memset(piece, 1, 4 << 20)
    for piece in pieces:
        libc.free(piece)

for _ in range(20):
    if _ == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt of glibc")
def test_new_threads_take_the_memory_of_earlier_ones() -> None:
    def run(mode: str) -> list[str]:
        command = [sys.executable, "-c", PROGRAM, mode]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    shared, own = run("shared"), run("own")
    if shared[0] == "False":
        pytest.skip("the C library has no mallopt")
    assert int(own[-1]) > 10 * 3 * 1024 / 2
    assert int(shared[-1]) < 3000

"""Survives SIGBUS: the signal for an access to pages that a truncated file no longer has.

A client owns the file behind its shared memory and may truncate it at any moment, also between a check of its size
and the access. A check can therefore never protect the server, and neither can locking or populating the pages,
because truncation removes them. Copying with `pread` would be safe, but costs a copy of every tensor. The guard costs
nothing: when an access fails, its handler maps zeroed memory in place of the missing pages, the access succeeds, and
the mapping is marked as broken. Wayland compositors protect themselves from their clients in the same way.

The handler is a Python function that C calls in the thread that failed. A SIGBUS is not an asynchronous interruption:
it comes from a memory access of that thread, which is inside no allocator or lock of the interpreter at that moment.
A thread without the GIL waits for it, so a framework must release the GIL while its threads read tensors, as all do.
"""

import ctypes
import mmap
import os
import signal
import sys
import weakref
from typing import Any

_SA_SIGINFO = 4
_MAP_FIXED = 0x10
_PAGE_BYTES = mmap.PAGESIZE


class _SignalInfo(ctypes.Structure):
    """The beginning of `siginfo_t`: si_addr is the address of a memory fault."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl, which differs from the kernel's."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_SignalInfo), ctypes.c_void_p)


class WatchedMapping:
    """A guarded mapping."""

    __slots__ = ("__weakref__", "address", "byte_size", "is_broken", "reference")

    def __init__(self, address: int, byte_size: int) -> None:
        self.address = address
        self.byte_size = byte_size
        self.is_broken = False
        """A part was replaced: reads return zeros, and writes have no effect for the client."""
        self.reference: object = None


class BusErrorGuard:
    """The process's handler of SIGBUS. One for all mappings: `guard()` returns it."""

    def __init__(self) -> None:
        # PyDLL keeps the GIL: no other thread needs to run between a fault and its repair.
        self._libc: Any = ctypes.PyDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        )
        # By identity. Only changed and copied by single operations of `dict`, which no other thread interrupts: the
        # last view of a mapping may go on any thread, and the handler may read it at any moment.
        self._watched: dict[int, WatchedMapping] = {}
        self._previous = _Action()
        self._callback = _HANDLER(self._on_fault)
        action = _Action()
        action.handler = ctypes.cast(self._callback, ctypes.c_void_p).value
        action.flags = _SA_SIGINFO
        if self._libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._previous)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def watch(self, mapping: mmap.mmap) -> WatchedMapping:
        """Guard a writable mapping for as long as it exists, including its views."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        watched = WatchedMapping(address, len(mapping))
        self._watched[id(watched)] = watched
        watched.reference = weakref.ref(mapping, lambda _: self._watched.pop(id(watched)))
        return watched

    @property
    def watched_count(self) -> int:
        """Number of existing mappings."""
        return len(self._watched)

    def _on_fault(self, number: int, info: Any, context: int) -> None:
        """Handle SIGBUS. On return the access is repeated, so it must succeed then, or end the process."""
        try:
            repaired = self._repair(info.contents.address or 0)
        except Exception:  # any repeated access would fail again
            repaired = False
        if not repaired:
            self._libc.sigaction(number, ctypes.byref(self._previous), None)

    def _repair(self, address: int) -> bool:
        for watched in list(self._watched.values()):
            offset = address - watched.address
            if 0 <= offset < watched.byte_size:
                break
        else:
            return False
        watched.is_broken = True
        # To the end: all pages behind the first missing one are missing too.
        start = offset - offset % _PAGE_BYTES
        where = watched.address + start
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        put = self._libc.mmap(where, watched.byte_size - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        return bool(put == where)


_guard: BusErrorGuard | None = None


def is_available() -> bool:
    """Return whether this platform supports the guard: Linux with 64-bit addresses."""
    return sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8


def guard() -> BusErrorGuard:
    """Return the process's guard, installed on first use. Raises OSError if the system rejects the handler."""
    global _guard  # noqa: PLW0603 - a process has one handler per signal
    if _guard is None:
        _guard = BusErrorGuard()
    return _guard

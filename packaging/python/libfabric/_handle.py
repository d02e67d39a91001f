"""Ownership of C objects."""
from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, TypeVar

from ._cffi import ffi, lib
from .errors import ClosedError, check

Self = TypeVar("Self", bound="Closable")


class Handle:
    """One C object, and the objects opened with it, which have to be closed first."""

    __slots__ = ("pointer", "fid", "uses", "users")

    def __init__(self, pointer: Any, *uses: Handle) -> None:
        self.pointer = pointer
        self.fid = ffi.cast("struct fid *", pointer)
        self.uses = uses
        self.users: set[Handle] = set()
        for handle in uses:
            handle.users.add(self)

    def close(self) -> int:
        """Closes the object, and returns the result of fi_close(3)."""
        if self.pointer is None:
            return 0
        result = int(lib.fi_close(self.fid))
        if result == 0:
            self.pointer = self.fid = None
            for handle in self.uses:
                handle.users.discard(self)
        return result

    def close_all(self) -> None:
        """Closes the object after all objects opened with it, for the garbage collector."""
        for handle in list(self.users):
            handle.close_all()
        self.close()


class Closable:
    """Object with a C object: closed once, by `close`, by the end of a `with` block, or by the garbage collector.

    `close` fails with `EBUSY` while other objects use this one.
    """

    _handle: Handle | None = None

    def _use(self, call: str) -> Any:
        """Returns the C object for a call, or raises `ClosedError`."""
        handle = self._handle
        if handle is None or handle.pointer is None:
            raise ClosedError(call)
        return handle.pointer

    def _own(self, call: str) -> Handle:
        """Returns the handle for an object that uses this one."""
        self._use(call)
        assert self._handle is not None
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the object is closed."""
        return self._handle is None or self._handle.pointer is None

    def close(self) -> None:
        """Closes the object.  Another call has no effect."""
        if self._handle is not None:
            check(self._handle.close(), "fi_close")

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"unclosed {type(self).__name__}", ResourceWarning, source=self)
            assert self._handle is not None
            self._handle.close_all()

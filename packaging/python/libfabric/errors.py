"""Exceptions.  Each is an `OSError`: `errno` has the positive number, `strerror` the call and the text."""
from __future__ import annotations

import errno

from ._cffi import ffi, lib


def error_text(code: int) -> str:
    """Returns the text of an error number (fi_strerror(3))."""
    return str(ffi.string(lib.fi_strerror(code)).decode())


class FabricError(OSError):
    """Error of a call or of an operation."""

    def __init__(self, code: int, call: str, detail: str = "") -> None:
        text = f"{call}: {error_text(code)}"
        super().__init__(code, f"{text} ({detail})" if detail else text)
        #: Name of the call or of the operation.
        self.call = call
        #: Text of the provider, or nothing.
        self.detail = detail

    def __reduce__(self) -> tuple[type[FabricError], tuple[int, str, str]]:
        return type(self), (int(self.errno or 0), self.call, self.detail)


class TryAgain(FabricError):
    """A queue of the endpoint is full: the call succeeds after some reads of the completion queue."""


class ClosedError(FabricError, ValueError):
    """Use of a closed object; also the end of operations of an endpoint closed before their completion."""

    def __init__(self, call: str, code: int = errno.EBADF, detail: str = "the object is closed") -> None:
        super().__init__(code, call, detail)

    def __reduce__(self) -> tuple[type[FabricError], tuple[int, str, str]]:
        return FabricError, (int(self.errno or 0), self.call, self.detail)


class OperationError(FabricError):
    """Error of a transfer, from its entry in the completion queue (fi_cq(3))."""

    def __init__(self, code: int, call: str, detail: str = "", length: int = 0, overflow: int = 0, tag: int = 0) -> None:
        super().__init__(code, call, detail)
        #: Bytes transferred.
        self.length = length
        #: Bytes of the message beyond the end of the buffer (errno `FI_ETRUNC`).
        self.overflow = overflow
        #: Tag of the message, of tagged operations.
        self.tag = tag

    def __reduce__(self) -> tuple[type[FabricError], tuple[int, str, str]]:
        return OperationError, (int(self.errno or 0), self.call, self.detail, self.length, self.overflow, self.tag)  # type: ignore[return-value]


def check(result: int, call: str) -> int:
    """Returns a result that is no error, and raises the others."""
    if result >= 0:
        return result
    code = -result
    raise (TryAgain if code == errno.EAGAIN else FabricError)(code, call)

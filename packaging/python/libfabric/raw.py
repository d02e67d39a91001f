"""The C interface: `lib` with calls and constants, `ffi` of cffi for pointers and memory."""
from ._cffi import ffi, lib

__all__ = ["ffi", "lib"]

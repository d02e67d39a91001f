# The extension module, whose declarations are in build_cffi.py.
from typing import Any

ffi: Any
lib: Any

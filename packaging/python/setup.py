"""Build of the extension module, from the headers and the library of one installation.

`OFI_PREFIX` names that installation; without it, pkg-config does.  A library in the package's own
folder `lib` is the one loaded, and another one only through `LD_LIBRARY_PATH` (RUNPATH).
"""
import os

from setuptools import setup

setup(
    version=os.environ.get("OFI_VERSION", "0"),
    cffi_modules=["build_cffi.py:builder"],
    # One module for every Python of this ABI and later ones.
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)

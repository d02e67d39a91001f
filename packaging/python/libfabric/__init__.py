"""Messages, tagged messages and remote memory access over libfabric, with asyncio.

    info = libfabric.getinfo("tcp")[0]
    with Fabric(info) as fabric, Domain(fabric, info) as domain, CompletionQueue(domain) as cq, \\
            AddressVector(domain) as av, Endpoint(domain, info, cq, av) as ep:
        peer = av.insert(name_of_the_peer)
        await ep.send(b"hello", peer)

`python -m libfabric.examples.echo` is a complete example with two processes.
"""
from __future__ import annotations

from ._cffi import ffi as _ffi
from ._cffi import lib as _lib
from .completion import Completion, CompletionQueue, Operation, Transfer
from .constants import API_VERSION, Cap, EndpointType, MrMode
from .endpoint import Endpoint
from .errors import ClosedError, FabricError, OperationError, TryAgain
from .info import Info, getinfo
from .objects import AddressVector, Domain, Fabric, MemoryRegion, RemoteMemory


def version() -> tuple[int, int]:
    """Returns the API version of the loaded library (fi_version(3))."""
    number = int(_lib.fi_version())
    return number >> 16, number & 0xFFFF


__all__ = [
    "API_VERSION",
    "AddressVector",
    "Cap",
    "ClosedError",
    "Completion",
    "CompletionQueue",
    "Domain",
    "Endpoint",
    "EndpointType",
    "Fabric",
    "FabricError",
    "Info",
    "MemoryRegion",
    "MrMode",
    "Operation",
    "OperationError",
    "RemoteMemory",
    "Transfer",
    "TryAgain",
    "getinfo",
    "version",
]
del _ffi

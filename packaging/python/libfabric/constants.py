"""Flags and enums, with the values of the C headers at the time of the build.

The remaining constants of the headers are attributes of `libfabric.raw.lib`.
"""
from __future__ import annotations

import enum

from ._cffi import lib


class Cap(enum.IntFlag):
    """Capabilities (fi_getinfo(3)), and access rights of memory regions (fi_mr(3))."""

    MSG = lib.FI_MSG
    RMA = lib.FI_RMA
    TAGGED = lib.FI_TAGGED
    ATOMIC = lib.FI_ATOMIC
    MULTICAST = lib.FI_MULTICAST
    COLLECTIVE = lib.FI_COLLECTIVE
    READ = lib.FI_READ
    WRITE = lib.FI_WRITE
    RECV = lib.FI_RECV
    SEND = lib.FI_SEND
    REMOTE_READ = lib.FI_REMOTE_READ
    REMOTE_WRITE = lib.FI_REMOTE_WRITE
    MULTI_RECV = lib.FI_MULTI_RECV
    HMEM = lib.FI_HMEM
    LOCAL_COMM = lib.FI_LOCAL_COMM
    REMOTE_COMM = lib.FI_REMOTE_COMM
    RMA_EVENT = lib.FI_RMA_EVENT
    SOURCE = lib.FI_SOURCE
    DIRECTED_RECV = lib.FI_DIRECTED_RECV


class EndpointType(enum.IntEnum):
    """Types of endpoints (fi_endpoint(3)).  `Endpoint` is for those without a connection, `RDM` and `DGRAM`."""

    UNSPEC = lib.FI_EP_UNSPEC
    MSG = lib.FI_EP_MSG
    RDM = lib.FI_EP_RDM
    DGRAM = lib.FI_EP_DGRAM


class MrMode(enum.IntFlag):
    """Requirements of memory registration (fi_mr(3))."""

    LOCAL = lib.FI_MR_LOCAL
    VIRT_ADDR = lib.FI_MR_VIRT_ADDR
    ALLOCATED = lib.FI_MR_ALLOCATED
    PROV_KEY = lib.FI_MR_PROV_KEY
    ENDPOINT = lib.FI_MR_ENDPOINT


#: Version of the API that these bindings were built for: `(major, minor)`.
API_VERSION: tuple[int, int] = (int(lib.FI_MAJOR_VERSION), int(lib.FI_MINOR_VERSION))
#: A message longer than its receive buffer.
FI_ETRUNC: int = lib.FI_ETRUNC
#: No address of a peer.
ADDR_UNSPEC: int = lib.FI_ADDR_UNSPEC

"""Discovery of providers (fi_getinfo(3))."""
from __future__ import annotations

from typing import Any

from ._cffi import ffi, lib
from .constants import API_VERSION, Cap, EndpointType, MrMode
from .errors import check

_TEXT_SIZE = 16384


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode()) if pointer != ffi.NULL else ""


def _address(pointer: Any, length: int) -> bytes | None:
    return bytes(ffi.buffer(pointer, length)) if pointer != ffi.NULL and length else None


class Info:
    """Way to communicate, as offered by a provider: `struct fi_info`."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = ffi.gc(pointer, lib.fi_freeinfo)

    @property
    def provider(self) -> str:
        """Name of the provider, for example `tcp` or `tcp;ofi_rxm`."""
        return _text(self._pointer.fabric_attr.prov_name)

    @property
    def fabric(self) -> str:
        """Name of the fabric."""
        return _text(self._pointer.fabric_attr.name)

    @property
    def domain(self) -> str:
        """Name of the domain, for example a network interface."""
        return _text(self._pointer.domain_attr.name)

    @property
    def caps(self) -> Cap:
        """Capabilities of the endpoints."""
        return Cap(int(self._pointer.caps))

    @property
    def endpoint_type(self) -> EndpointType:
        """Type of the endpoints."""
        return EndpointType(int(self._pointer.ep_attr.type))

    @property
    def mr_mode(self) -> MrMode:
        """Requirements of memory registration."""
        return MrMode(int(self._pointer.domain_attr.mr_mode))

    @property
    def max_message_size(self) -> int:
        """Length of the longest message, in bytes."""
        return int(self._pointer.ep_attr.max_msg_size)

    @property
    def data_size(self) -> int:
        """Bytes of the data that goes with a message to the completion of its receive."""
        return int(self._pointer.domain_attr.cq_data_size)

    @property
    def source_address(self) -> bytes | None:
        """Address of an endpoint of this info, if it is known before."""
        return _address(self._pointer.src_addr, self._pointer.src_addrlen)

    @property
    def destination_address(self) -> bytes | None:
        """Address of the given node and service, if they are a peer's."""
        return _address(self._pointer.dest_addr, self._pointer.dest_addrlen)

    def __repr__(self) -> str:
        return f"<Info {self.provider} {self.endpoint_type.name} of {self.domain}>"

    def __str__(self) -> str:
        text = ffi.new("char[]", _TEXT_SIZE)
        lib.fi_tostr_r(text, _TEXT_SIZE, self._pointer, lib.FI_TYPE_INFO)
        return _text(text)


def _set_text(structure: Any, member: str, value: str | None) -> None:
    if value is not None:
        setattr(structure, member, lib.strdup(value.encode()))  # fi_freeinfo frees it


def getinfo(
    provider: str | None = None,
    node: str | None = None,
    service: str | None = None,
    *,
    caps: Cap | int = Cap.MSG | Cap.TAGGED | Cap.RMA,
    endpoint_type: EndpointType = EndpointType.RDM,
    source: bool = False,
    fabric: str | None = None,
    domain: str | None = None,
) -> list[Info]:
    """Returns the ways to communicate, the best first.

    `source` states that `node` and `service` are of this process, and not of a peer.  Completions have
    the address of a message's sender only with `Cap.SOURCE`.  Without a result, the error is
    `FabricError` with `ENODATA`; `fi_info --explain` prints the reasons.
    """
    hints = ffi.gc(lib.fi_allocinfo(), lib.fi_freeinfo)
    if hints == ffi.NULL:
        raise MemoryError("fi_allocinfo")
    hints.caps = int(caps)
    hints.mode = lib.FI_CONTEXT | lib.FI_CONTEXT2
    hints.ep_attr.type = int(endpoint_type)
    hints.domain_attr.mr_mode = int(MrMode.VIRT_ADDR | MrMode.ALLOCATED | MrMode.PROV_KEY)
    hints.domain_attr.threading = lib.FI_THREAD_SAFE
    hints.domain_attr.resource_mgmt = lib.FI_RM_ENABLED
    _set_text(hints.fabric_attr, "prov_name", provider)
    _set_text(hints.fabric_attr, "name", fabric)
    _set_text(hints.domain_attr, "name", domain)
    names = [name.encode() if name is not None else ffi.NULL for name in (node, service)]
    flags = lib.FI_SOURCE if source else 0
    first = ffi.new("struct fi_info **")
    check(lib.fi_getinfo(API_VERSION[0] << 16 | API_VERSION[1], *names, flags, hints, first), "fi_getinfo")
    infos, item = [], first[0]
    while item != ffi.NULL:
        following = item.next
        item.next = ffi.NULL  # each is freed by itself
        infos.append(Info(item))
        item = following
    return infos

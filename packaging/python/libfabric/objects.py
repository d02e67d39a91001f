"""Fabric, domain, address vector and memory regions."""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from ._cffi import ffi, lib
from ._handle import Closable, Handle
from .constants import Cap, MrMode
from .errors import FabricError, check
from .info import Info

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Fabric(Closable):
    """Network of a provider (fi_fabric(3))."""

    def __init__(self, info: Info) -> None:
        result = ffi.new("struct fid_fabric **")
        check(lib.fi_fabric(info._pointer.fabric_attr, result, ffi.NULL), "fi_fabric")
        self._handle = Handle(result[0])


class Domain(Closable):
    """Interface of a fabric: the owner of endpoints, queues and regions (fi_domain(3))."""

    def __init__(self, fabric: Fabric, info: Info) -> None:
        uses = fabric._own("fi_domain")
        result = ffi.new("struct fid_domain **")
        check(lib.fi_domain(uses.pointer, info._pointer, result, ffi.NULL), "fi_domain")
        self._handle = Handle(result[0], uses)
        self.fabric = fabric
        #: Requirements of memory registration.
        self.mr_mode = info.mr_mode
        self._keys = itertools.count(1)


class AddressVector(Closable):
    """Table of peer addresses (fi_av(3)).  Its methods return and take indices, numbers of type `fi_addr_t`."""

    def __init__(self, domain: Domain, size: int = 0) -> None:
        uses = domain._own("fi_av_open")
        attr = ffi.new("struct fi_av_attr *")
        attr.count = size
        result = ffi.new("struct fid_av **")
        check(lib.fi_av_open(uses.pointer, attr, result, ffi.NULL), "fi_av_open")
        self._handle = Handle(result[0], uses)
        self.domain = domain

    def insert(self, name: bytes) -> int:
        """Adds the address of an endpoint, as `Endpoint.name` returns it."""
        av = self._use("fi_av_insert")
        if not name:
            raise ValueError("an address has at least one byte")
        # The provider reads an address of its own format, and not a length.
        place = ffi.new("char[]", max(len(name), 256))
        ffi.memmove(place, name, len(name))
        address = ffi.new("fi_addr_t *")
        return self._inserted(lib.fi_av_insert(av, place, 1, address, 0, ffi.NULL), address, "fi_av_insert")

    def insert_service(self, node: str, service: str) -> int:
        """Adds the address of a host and a service, for example a port."""
        av = self._use("fi_av_insertsvc")
        address = ffi.new("fi_addr_t *")
        result = lib.fi_av_insertsvc(av, node.encode(), service.encode(), address, 0, ffi.NULL)
        return self._inserted(result, address, "fi_av_insertsvc")

    @staticmethod
    def _inserted(count: int, address: Any, call: str) -> int:
        if check(count, call) != 1:
            raise FabricError(int(lib.FI_EINVAL), call)
        return int(address[0])

    def lookup(self, address: int) -> bytes:
        """Returns the address with this index."""
        av = self._use("fi_av_lookup")
        length = ffi.new("size_t *", 256)
        place = ffi.new("char[]", 256)
        check(lib.fi_av_lookup(av, address, place, length), "fi_av_lookup")
        return bytes(ffi.buffer(place, min(length[0], 256)))

    def remove(self, address: int) -> None:
        """Removes the address with this index."""
        av = self._use("fi_av_remove")
        check(lib.fi_av_remove(av, ffi.new("fi_addr_t *", address), 1, 0), "fi_av_remove")

    def text(self, name: bytes) -> str:
        """Returns an address as text (fi_av_straddr)."""
        av = self._use("fi_av_straddr")
        place, source = ffi.new("char[]", 256), ffi.new("char[]", max(len(name), 256))
        ffi.memmove(source, name, len(name))
        lib.fi_av_straddr(av, source, place, ffi.new("size_t *", 256))
        return str(ffi.string(place).decode())


class RemoteMemory(NamedTuple):
    """Memory of a peer: a tuple of numbers, to be sent to the process that reads or writes it."""

    address: int
    key: int
    length: int

    def part(self, offset: int, length: int | None = None) -> RemoteMemory:
        """Returns a part, from `offset` on."""
        length = self.length - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"bytes {offset} to {offset + length} are not in a memory of {self.length} bytes")
        return RemoteMemory(self.address + offset, self.key, length)


class MemoryRegion(Closable):
    """Buffer registered with a domain (fi_mr(3)): accessible to peers, and usable as a buffer of transfers.

    The object of the buffer is kept, and cannot change its size, until the region is closed.
    """

    def __init__(
        self,
        domain: Domain,
        buffer: Buffer,
        access: Cap | int = Cap.SEND | Cap.RECV | Cap.READ | Cap.WRITE | Cap.REMOTE_READ | Cap.REMOTE_WRITE,
        key: int | None = None,
    ) -> None:
        uses = domain._own("fi_mr_reg")
        written = int(access) & int(Cap.RECV | Cap.READ | Cap.REMOTE_WRITE)
        self._memory = ffi.from_buffer(buffer, require_writable=bool(written))
        self._buffer = buffer
        if key is None:
            key = 0 if domain.mr_mode & MrMode.PROV_KEY else next(domain._keys)
        result = ffi.new("struct fid_mr **")
        check(
            lib.fi_mr_reg(uses.pointer, self._memory, len(self._memory), int(access), 0, key, 0, result, ffi.NULL),
            "fi_mr_reg",
        )
        self._handle = Handle(result[0], uses)
        self.domain = domain

    @property
    def key(self) -> int:
        """Key of the region, for peers."""
        return int(lib.fi_mr_key(self._use("fi_mr_key")))

    @property
    def remote(self) -> RemoteMemory:
        """Description of the region for peers."""
        key = self.key
        address = int(ffi.cast("uintptr_t", self._memory)) if self.domain.mr_mode & MrMode.VIRT_ADDR else 0
        return RemoteMemory(address, key, len(self._memory))

    @property
    def view(self) -> memoryview:
        """Registered memory."""
        self._use("view")
        return memoryview(self._buffer).cast("B")

    def __buffer__(self, flags: int) -> memoryview:
        return self.view

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def _descriptor(self) -> Any:
        return lib.fi_mr_desc(self._use("fi_mr_desc"))

    def close(self) -> None:
        super().close()
        ffi.release(self._memory)

"""Messages between two processes, with asyncio.

    python -m libfabric.examples.echo server [PROVIDER]
    python -m libfabric.examples.echo client [PROVIDER] < names

The server prints its address, a line of hexadecimal digits.  The client reads it from standard input,
introduces itself, writes into memory of the server, and sends a few messages, which come back.
"""
from __future__ import annotations

import asyncio
import sys

from libfabric import (
    AddressVector,
    Cap,
    CompletionQueue,
    Domain,
    Endpoint,
    Fabric,
    MemoryRegion,
    RemoteMemory,
    getinfo,
)

INTRODUCTION, MEMORY, MESSAGE, LAST = range(1, 5)  # tags


async def serve(domain: Domain, ep: Endpoint, av: AddressVector) -> None:
    print(ep.name.hex(), flush=True)
    name = bytearray(256)
    received = await ep.trecv(name, INTRODUCTION)
    client = av.insert(bytes(name[: received.length]))
    with MemoryRegion(domain, bytearray(16), Cap.REMOTE_WRITE) as region:
        await ep.tsend(" ".join(map(str, region.remote)).encode(), client, MEMORY)
        buffer = bytearray(64)
        while True:
            received = await ep.trecv(buffer, 0, ignore=2**64 - 1)
            await ep.tsend(memoryview(buffer)[: received.length], client, received.tag)
            if received.tag == LAST:
                break
        print(f"the client has written {bytes(region.view)!r}", flush=True)


async def talk(ep: Endpoint, av: AddressVector, server_name: bytes) -> None:
    server = av.insert(server_name)
    await ep.tsend(ep.name, server, INTRODUCTION)
    buffer = bytearray(64)
    received = await ep.trecv(buffer, MEMORY)
    remote = RemoteMemory(*map(int, buffer[: received.length].split()))
    await ep.write(b"remote memory...", server, remote)
    for tag, text in (MESSAGE, b"one"), (MESSAGE, b"two"), (LAST, b"three"):
        answer = ep.trecv(buffer, tag)  # posted before its message
        await ep.tsend(text, server, tag)
        received = await asyncio.wait_for(answer, 30)
        print(f"{buffer[: received.length].decode()} came back", flush=True)


async def main(role: str, provider: str) -> None:
    info = getinfo(provider, caps=Cap.TAGGED | Cap.RMA)[0]
    with Fabric(info) as fabric, Domain(fabric, info) as domain, CompletionQueue(domain) as cq, AddressVector(
        domain
    ) as av, Endpoint(domain, info, cq, av) as ep:
        if role == "server":
            await serve(domain, ep, av)
        else:
            await talk(ep, av, bytes.fromhex(sys.stdin.readline()))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("server", "client"):
        sys.exit("usage: python -m libfabric.examples.echo server|client [PROVIDER]")
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "tcp"))

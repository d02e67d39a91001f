#!/usr/bin/env python3
"""A message to oneself over libfabric, from Python without any C.

This library exports the calls that C has as inline functions, so ctypes can
make all of them.  Needs nothing but the loader to find libfabric.so.1:

    LD_LIBRARY_PATH=/opt/ofi/lib python3 ctypes_example.py [PROVIDER]
"""
import sys
from ctypes import (CDLL, POINTER, Structure, addressof, byref, c_char_p, c_int, c_size_t, c_ssize_t,
                    c_uint32, c_uint64, c_void_p, create_string_buffer, pointer, sizeof)

FI_MSG, FI_TRANSMIT, FI_RECV = 1 << 1, 1 << 11, 1 << 10
FI_SOURCE, FI_EP_RDM, FI_AV_TABLE, FI_CQ_FORMAT_MSG, FI_WAIT_UNSPEC = 1 << 57, 3, 2, 2, 1
FI_ADDR_UNSPEC, FI_VERSION_1_5 = 2**64 - 1, 1 << 16 | 5


class EpAttr(Structure):  # struct fi_ep_attr, its beginning: fi_endpoint(3)
    _fields_ = [("type", c_int)]


class FabricAttr(Structure):  # struct fi_fabric_attr: fi_fabric(3)
    _fields_ = [("fabric", c_void_p), ("name", c_char_p), ("prov_name", c_void_p),
                ("prov_version", c_uint32), ("api_version", c_uint32)]


class Info(Structure):  # struct fi_info: fi_getinfo(3)
    _fields_ = [("next", c_void_p), ("caps", c_uint64), ("mode", c_uint64), ("addr_format", c_uint32),
                ("src_addrlen", c_size_t), ("dest_addrlen", c_size_t), ("src_addr", c_void_p),
                ("dest_addr", c_void_p), ("handle", c_void_p), ("tx_attr", c_void_p), ("rx_attr", c_void_p),
                ("ep_attr", POINTER(EpAttr)), ("domain_attr", c_void_p), ("fabric_attr", POINTER(FabricAttr)),
                ("nic", c_void_p)]


class CqAttr(Structure):  # struct fi_cq_attr: fi_cq(3)
    _fields_ = [("size", c_size_t), ("flags", c_uint64), ("format", c_int), ("wait_obj", c_int),
                ("signaling_vector", c_int), ("wait_cond", c_int), ("wait_set", c_void_p), ("xpu_ctx", c_void_p)]


class CqMsgEntry(Structure):  # struct fi_cq_msg_entry
    _fields_ = [("op_context", c_void_p), ("flags", c_uint64), ("len", c_size_t)]


class AvAttr(Structure):  # struct fi_av_attr: fi_av(3)
    _fields_ = [("type", c_int), ("rx_ctx_bits", c_int), ("count", c_size_t), ("ep_per_node", c_size_t),
                ("name", c_char_p), ("map_addr", c_void_p), ("flags", c_uint64)]


lib = CDLL("libfabric.so.1")
libc = CDLL(None)
libc.strdup.restype = c_void_p


def prototype(name, result, *arguments):
    call = getattr(lib, name)
    call.restype, call.argtypes = result, arguments
    return call


strerror = prototype("fi_strerror", c_char_p, c_int)
allocinfo = prototype("fi_allocinfo", POINTER(Info))
freeinfo = prototype("fi_freeinfo", None, POINTER(Info))
close = prototype("fi_close", c_int, c_void_p)
# An object begins with its fid, so one pointer serves as both.
for name, arguments in {
    "fi_getinfo": [c_uint32, c_char_p, c_char_p, c_uint64, POINTER(Info), POINTER(POINTER(Info))],
    "fi_fabric": [POINTER(FabricAttr), POINTER(c_void_p), c_void_p],
    "fi_domain": [c_void_p, POINTER(Info), POINTER(c_void_p), c_void_p],
    "fi_cq_open": [c_void_p, POINTER(CqAttr), POINTER(c_void_p), c_void_p],
    "fi_av_open": [c_void_p, POINTER(AvAttr), POINTER(c_void_p), c_void_p],
    "fi_endpoint": [c_void_p, POINTER(Info), POINTER(c_void_p), c_void_p],
    "fi_ep_bind": [c_void_p, c_void_p, c_uint64],
    "fi_enable": [c_void_p],
    "fi_getname": [c_void_p, c_void_p, POINTER(c_size_t)],
    "fi_av_insert": [c_void_p, c_void_p, c_size_t, POINTER(c_uint64), c_uint64, c_void_p],
}.items():
    prototype(name, c_int, *arguments)
for name, arguments in {
    "fi_recv": [c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_void_p],
    "fi_send": [c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_void_p],
    "fi_cq_sread": [c_void_p, c_void_p, c_size_t, c_void_p, c_int],
}.items():
    prototype(name, c_ssize_t, *arguments)


def call(name, *arguments):
    """Makes a call; a negative answer is an exception."""
    answer = getattr(lib, name)(*arguments)
    if answer < 0:
        raise OSError(-answer, f"{name}: {strerror(-answer).decode()}")
    return answer


def opened(name, *arguments):
    """Makes a call that opens an object, which comes before the context."""
    handle = c_void_p()
    call(name, *arguments, byref(handle), None)
    return handle


def main(provider):
    hints = allocinfo()
    hints.contents.caps = FI_MSG
    hints.contents.mode = 2**64 - 1
    hints.contents.ep_attr.contents.type = FI_EP_RDM
    # fi_freeinfo gives it back to malloc, so it has to come from there
    hints.contents.fabric_attr.contents.prov_name = libc.strdup(provider.encode())
    info = POINTER(Info)()
    call("fi_getinfo", FI_VERSION_1_5, b"127.0.0.1", None, FI_SOURCE, hints, byref(info))
    freeinfo(hints)

    fabric = opened("fi_fabric", info.contents.fabric_attr)
    domain = opened("fi_domain", fabric, info)
    cq = opened("fi_cq_open", domain, byref(CqAttr(format=FI_CQ_FORMAT_MSG, wait_obj=FI_WAIT_UNSPEC)))
    av = opened("fi_av_open", domain, byref(AvAttr(type=FI_AV_TABLE)))
    ep = opened("fi_endpoint", domain, info)
    call("fi_ep_bind", ep, cq, FI_TRANSMIT | FI_RECV)
    call("fi_ep_bind", ep, av, 0)
    call("fi_enable", ep)

    name = create_string_buffer(64)
    size = c_size_t(sizeof(name))
    call("fi_getname", ep, name, byref(size))
    myself = c_uint64()
    assert call("fi_av_insert", av, name, 1, byref(myself), 0, None) == 1

    text = create_string_buffer(b"hello, fabric")
    room = create_string_buffer(64)
    call("fi_recv", ep, room, sizeof(room), None, FI_ADDR_UNSPEC, addressof(room))
    call("fi_send", ep, text, len(text.value), None, myself, addressof(text))
    left = {addressof(room), addressof(text)}
    while left:
        entry = CqMsgEntry()
        if call("fi_cq_sread", cq, pointer(entry), 1, None, 10_000) == 1:
            left.remove(entry.op_context)
            if entry.op_context == addressof(room):
                assert entry.flags & FI_RECV and entry.len == len(text.value)
    assert room.value == text.value
    print(f"{provider}: received {room.value.decode()!r}")

    for fid in (ep, av, cq, domain, fabric):
        assert close(fid) == 0
    freeinfo(info)


main(sys.argv[1] if len(sys.argv) > 1 else "tcp")

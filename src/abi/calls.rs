//! Calls of the API consisting only of a jump through an ops table.
//!
//! C has them as `static inline` functions in the headers. `libfabric.so.1` has them a second time
//! as functions (node `FABRIC_OFI_1.0`), for languages with bindings to symbols and without
//! headers. Both come from this one list: `build.rs` reads it to write the inlines, and
//! [`calls!`](crate::calls) passes it to a macro of the caller.
//!
//! A row is `name(parameters) -> result => object.table, slot;`. The first parameter is the
//! `object`, or any fid at its start; `table` is the path from the object to its ops table.
//! `guarded` marks the slots appended to a table by later releases: the inline checks the slot
//! before the call, because the table may come from an older provider. (The functions always
//! check.)
//!
//! Calls with more work - fill a struct, compute, combine others - are written out: for C in
//! `capi/headers/*.inline.h`, for the library in `capi/src/calls.rs`.

/// Hands the list of plain calls, by header, to the macro `$then`.
#[macro_export]
macro_rules! calls {
    ($then:ident) => {
        $then! {
        fabric {
            fi_close(fid: *mut fid) -> c_int
                => fid.ops, close;
            fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int
                => fid.ops, control;
            fi_open_ops(
                fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void,
                context: *mut c_void
            ) -> c_int
                => fid.ops, ops_open;
            fi_set_ops(
                fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void,
                context: *mut c_void
            ) -> c_int
                => fid.ops, ops_set, guarded;
        }
        fi_eq {
            fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int
                => fid_fabric.ops, trywait;
            fi_wait(waitset: *mut fid_wait, timeout: c_int) -> c_int
                => fid_wait.ops, wait;
            fi_poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int
                => fid_poll.ops, poll;
            fi_poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int
                => fid_poll.ops, poll_add;
            fi_poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int
                => fid_poll.ops, poll_del;
            fi_eq_open(
                fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq,
                context: *mut c_void
            ) -> c_int
                => fid_fabric.ops, eq_open;
            fi_eq_read(
                eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64
            ) -> ssize_t
                => fid_eq.ops, read;
            fi_eq_readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> ssize_t
                => fid_eq.ops, readerr;
            fi_eq_write(
                eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64
            ) -> ssize_t
                => fid_eq.ops, write;
            fi_eq_sread(
                eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int,
                flags: u64
            ) -> ssize_t
                => fid_eq.ops, sread;
            fi_eq_strerror(
                eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
                len: usize
            ) -> *const c_char
                => fid_eq.ops, strerror;
            fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> ssize_t
                => fid_cq.ops, read;
            fi_cq_readfrom(
                cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t
            ) -> ssize_t
                => fid_cq.ops, readfrom;
            fi_cq_sread(
                cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void,
                timeout: c_int
            ) -> ssize_t
                => fid_cq.ops, sread;
            fi_cq_sreadfrom(
                cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t,
                cond: *const c_void, timeout: c_int
            ) -> ssize_t
                => fid_cq.ops, sreadfrom;
            fi_cq_signal(cq: *mut fid_cq) -> c_int
                => fid_cq.ops, signal;
            fi_cq_strerror(
                cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
                len: usize
            ) -> *const c_char
                => fid_cq.ops, strerror;
            fi_cntr_read(cntr: *mut fid_cntr) -> u64
                => fid_cntr.ops, read;
            fi_cntr_readerr(cntr: *mut fid_cntr) -> u64
                => fid_cntr.ops, readerr;
            fi_cntr_add(cntr: *mut fid_cntr, value: u64) -> c_int
                => fid_cntr.ops, add;
            fi_cntr_adderr(cntr: *mut fid_cntr, value: u64) -> c_int
                => fid_cntr.ops, adderr, guarded;
            fi_cntr_set(cntr: *mut fid_cntr, value: u64) -> c_int
                => fid_cntr.ops, set;
            fi_cntr_seterr(cntr: *mut fid_cntr, value: u64) -> c_int
                => fid_cntr.ops, seterr, guarded;
            fi_cntr_wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int
                => fid_cntr.ops, wait;
            fi_cq_export_xpu(cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq) -> c_int
                => fid_cq.ops, export_xpu, guarded;
            fi_cntr_export_xpu(
                cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr
            ) -> c_int
                => fid_cntr.ops, export_xpu, guarded;
        }
        fi_domain {
            fi_domain(
                fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain,
                context: *mut c_void
            ) -> c_int
                => fid_fabric.ops, domain;
            fi_domain_bind(domain: *mut fid_domain, fid: *mut fid, flags: u64) -> c_int
                => fid_domain.fid.ops, bind;
            fi_cq_open(
                domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, cq_open;
            fi_cntr_open(
                domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, cntr_open;
            fi_wait_open(
                fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait
            ) -> c_int
                => fid_fabric.ops, wait_open;
            fi_poll_open(
                domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll
            ) -> c_int
                => fid_domain.ops, poll_open;
            fi_mr_reg(
                domain: *mut fid_domain, buf: *const c_void, len: usize, acs: u64, offset: u64,
                requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void
            ) -> c_int
                => fid_domain.mr, reg;
            fi_mr_regv(
                domain: *mut fid_domain, iov: *const iovec, count: usize, acs: u64, offset: u64,
                requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void
            ) -> c_int
                => fid_domain.mr, regv;
            fi_mr_regattr(
                domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr
            ) -> c_int
                => fid_domain.mr, regattr;
            fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int
                => fid_mr.fid.ops, bind;
            fi_av_open(
                domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, av_open;
            fi_av_bind(av: *mut fid_av, fid: *mut fid, flags: u64) -> c_int
                => fid_av.fid.ops, bind;
            fi_av_insert(
                av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t,
                flags: u64, context: *mut c_void
            ) -> c_int
                => fid_av.ops, insert;
            fi_av_insertsvc(
                av: *mut fid_av, node: *const c_char, service: *const c_char,
                fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
            ) -> c_int
                => fid_av.ops, insertsvc;
            fi_av_insertsym(
                av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char,
                svccnt: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
            ) -> c_int
                => fid_av.ops, insertsym;
            fi_av_remove(
                av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64
            ) -> c_int
                => fid_av.ops, remove;
            fi_av_lookup(
                av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize
            ) -> c_int
                => fid_av.ops, lookup;
            fi_av_straddr(
                av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize
            ) -> *const c_char
                => fid_av.ops, straddr;
            fi_av_insert_auth_key(
                av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize,
                fi_addr: *mut fi_addr_t, flags: u64
            ) -> c_int
                => fid_av.ops, insert_auth_key, guarded;
            fi_av_lookup_auth_key(
                av: *mut fid_av, addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize
            ) -> c_int
                => fid_av.ops, lookup_auth_key, guarded;
            fi_av_set_user_id(
                av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64
            ) -> c_int
                => fid_av.ops, set_user_id, guarded;
            fi_av_lookup2(
                av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64,
                ctx: *mut fid_xpu_ctx
            ) -> c_int
                => fid_av.ops, lookup2, guarded;
        }
        fi_endpoint {
            fi_passive_ep(
                fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep,
                context: *mut c_void
            ) -> c_int
                => fid_fabric.ops, passive_ep;
            fi_endpoint(
                domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, endpoint;
            fi_scalable_ep(
                domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, scalable_ep;
            fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int
                => fid_ep.fid.ops, bind;
            fi_pep_bind(pep: *mut fid_pep, bfid: *mut fid, flags: u64) -> c_int
                => fid_pep.fid.ops, bind;
            fi_scalable_ep_bind(sep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int
                => fid_ep.fid.ops, bind;
            fi_cancel(fid: fid_t, context: *mut c_void) -> ssize_t
                => fid_ep.ops, cancel;
            fi_setopt(
                fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize
            ) -> c_int
                => fid_ep.ops, setopt;
            fi_getopt(
                fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize
            ) -> c_int
                => fid_ep.ops, getopt;
            fi_tx_context(
                ep: *mut fid_ep, idx: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
                context: *mut c_void
            ) -> c_int
                => fid_ep.ops, tx_ctx;
            fi_rx_context(
                ep: *mut fid_ep, idx: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
                context: *mut c_void
            ) -> c_int
                => fid_ep.ops, rx_ctx;
            fi_rx_size_left(ep: *mut fid_ep) -> ssize_t
                => fid_ep.ops, rx_size_left;
            fi_tx_size_left(ep: *mut fid_ep) -> ssize_t
                => fid_ep.ops, tx_size_left;
            fi_stx_context(
                domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, stx_ctx;
            fi_srx_context(
                domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, srx_ctx;
            fi_recv(
                ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
                src_addr: fi_addr_t, context: *mut c_void
            ) -> ssize_t
                => fid_ep.msg, recv;
            fi_recvv(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                src_addr: fi_addr_t, context: *mut c_void
            ) -> ssize_t
                => fid_ep.msg, recvv;
            fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t
                => fid_ep.msg, recvmsg;
            fi_send(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
                dest_addr: fi_addr_t, context: *mut c_void
            ) -> ssize_t
                => fid_ep.msg, send;
            fi_sendv(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                dest_addr: fi_addr_t, context: *mut c_void
            ) -> ssize_t
                => fid_ep.msg, sendv;
            fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t
                => fid_ep.msg, sendmsg;
            fi_inject(
                ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t
            ) -> ssize_t
                => fid_ep.msg, inject;
            fi_senddata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
                dest_addr: fi_addr_t, context: *mut c_void
            ) -> ssize_t
                => fid_ep.msg, senddata;
            fi_injectdata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t
            ) -> ssize_t
                => fid_ep.msg, injectdata;
            fi_ep_export_xpu(ep: *mut fid_ep, flags: u64, xpu_ep: *mut fid_xpu_ep) -> c_int
                => fid_ep.ops, export_xpu, guarded;
        }
        fi_cm {
            fi_setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int
                => fid_ep.cm, setname;
            fi_getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int
                => fid_ep.cm, getname;
            fi_getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int
                => fid_ep.cm, getpeer;
            fi_listen(pep: *mut fid_pep) -> c_int
                => fid_pep.cm, listen;
            fi_connect(
                ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize
            ) -> c_int
                => fid_ep.cm, connect;
            fi_accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int
                => fid_ep.cm, accept;
            fi_reject(
                pep: *mut fid_pep, handle: fid_t, param: *const c_void, paramlen: usize
            ) -> c_int
                => fid_pep.cm, reject;
            fi_shutdown(ep: *mut fid_ep, flags: u64) -> c_int
                => fid_ep.cm, shutdown;
            fi_join(
                ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc,
                context: *mut c_void
            ) -> c_int
                => fid_ep.cm, join, guarded;
        }
        fi_rma {
            fi_read(
                ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
                src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.rma, read;
            fi_readv(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.rma, readv;
            fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t
                => fid_ep.rma, readmsg;
            fi_write(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
                dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.rma, write;
            fi_writev(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.rma, writev;
            fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t
                => fid_ep.rma, writemsg;
            fi_inject_write(
                ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64,
                key: u64
            ) -> ssize_t
                => fid_ep.rma, inject;
            fi_writedata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
                dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.rma, writedata;
            fi_inject_writedata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
                addr: u64, key: u64
            ) -> ssize_t
                => fid_ep.rma, injectdata;
        }
        fi_tagged {
            fi_trecv(
                ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
                src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.tagged, recv;
            fi_trecvv(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                src_addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.tagged, recvv;
            fi_trecvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t
                => fid_ep.tagged, recvmsg;
            fi_tsend(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
                dest_addr: fi_addr_t, tag: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.tagged, send;
            fi_tsendv(
                ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
                dest_addr: fi_addr_t, tag: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.tagged, sendv;
            fi_tsendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t
                => fid_ep.tagged, sendmsg;
            fi_tinject(
                ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64
            ) -> ssize_t
                => fid_ep.tagged, inject;
            fi_tsenddata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
                dest_addr: fi_addr_t, tag: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.tagged, senddata;
            fi_tinjectdata(
                ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
                tag: u64
            ) -> ssize_t
                => fid_ep.tagged, injectdata;
        }
        fi_atomic {
            fi_atomic(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                dest_addr: fi_addr_t, addr: u64, key: u64, datatype: c_enum<fi_datatype>,
                op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, write;
            fi_atomicv(
                ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
                dest_addr: fi_addr_t, addr: u64, key: u64, datatype: c_enum<fi_datatype>,
                op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, writev;
            fi_atomicmsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> ssize_t
                => fid_ep.atomic, writemsg;
            fi_inject_atomic(
                ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64,
                key: u64, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>
            ) -> ssize_t
                => fid_ep.atomic, inject;
            fi_fetch_atomic(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
                key: u64, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, readwrite;
            fi_fetch_atomicv(
                ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
                resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
                dest_addr: fi_addr_t, addr: u64, key: u64, datatype: c_enum<fi_datatype>,
                op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, readwritev;
            fi_fetch_atomicmsg(
                ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc,
                result_desc: *mut *mut c_void, result_count: usize, flags: u64
            ) -> ssize_t
                => fid_ep.atomic, readwritemsg;
            fi_compare_atomic(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                compare: *const c_void, compare_desc: *mut c_void, result: *mut c_void,
                result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64,
                datatype: c_enum<fi_datatype>, op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, compwrite;
            fi_compare_atomicv(
                ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
                comparev: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
                resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
                dest_addr: fi_addr_t, addr: u64, key: u64, datatype: c_enum<fi_datatype>,
                op: c_enum<fi_op>, context: *mut c_void
            ) -> ssize_t
                => fid_ep.atomic, compwritev;
            fi_compare_atomicmsg(
                ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
                compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
                result_desc: *mut *mut c_void, result_count: usize, flags: u64
            ) -> ssize_t
                => fid_ep.atomic, compwritemsg;
            fi_atomicvalid(
                ep: *mut fid_ep, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>,
                count: *mut usize
            ) -> c_int
                => fid_ep.atomic, writevalid;
            fi_fetch_atomicvalid(
                ep: *mut fid_ep, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>,
                count: *mut usize
            ) -> c_int
                => fid_ep.atomic, readwritevalid;
            fi_compare_atomicvalid(
                ep: *mut fid_ep, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>,
                count: *mut usize
            ) -> c_int
                => fid_ep.atomic, compwritevalid;
            fi_query_atomic(
                domain: *mut fid_domain, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>,
                attr: *mut fi_atomic_attr, flags: u64
            ) -> c_int
                => fid_domain.ops, query_atomic, guarded;
        }
        fi_collective {
            fi_av_set(
                av: *mut fid_av, attr: *mut fi_av_set_attr, set: *mut *mut fid_av_set,
                context: *mut c_void
            ) -> c_int
                => fid_av.ops, av_set, guarded;
            fi_av_set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int
                => fid_av_set.ops, set_union;
            fi_av_set_intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int
                => fid_av_set.ops, intersect;
            fi_av_set_diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int
                => fid_av_set.ops, diff;
            fi_av_set_insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int
                => fid_av_set.ops, insert;
            fi_av_set_remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int
                => fid_av_set.ops, remove;
            fi_av_set_addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int
                => fid_av_set.ops, addr;
            fi_barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> ssize_t
                => fid_ep.collective, barrier;
            fi_broadcast(
                ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void,
                coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: c_enum<fi_datatype>,
                flags: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, broadcast;
            fi_alltoall(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                datatype: c_enum<fi_datatype>, flags: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, alltoall;
            fi_allreduce(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                datatype: c_enum<fi_datatype>, op: c_enum<fi_op>, flags: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, allreduce;
            fi_allgather(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                datatype: c_enum<fi_datatype>, flags: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, allgather;
            fi_reduce_scatter(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                datatype: c_enum<fi_datatype>, op: c_enum<fi_op>, flags: u64, context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, reduce_scatter;
            fi_reduce(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                root_addr: fi_addr_t, datatype: c_enum<fi_datatype>, op: c_enum<fi_op>, flags: u64,
                context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, reduce;
            fi_scatter(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                root_addr: fi_addr_t, datatype: c_enum<fi_datatype>, flags: u64,
                context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, scatter;
            fi_gather(
                ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
                result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
                root_addr: fi_addr_t, datatype: c_enum<fi_datatype>, flags: u64,
                context: *mut c_void
            ) -> ssize_t
                => fid_ep.collective, gather;
            fi_query_collective(
                domain: *mut fid_domain, coll: c_enum<fi_collective_op>,
                attr: *mut fi_collective_attr, flags: u64
            ) -> c_int
                => fid_domain.ops, query_collective, guarded;
        }
        fi_ext {
            fi_import_fid(fid: *mut fid, expfid: *mut fid, flags: u64) -> c_int
                => fid.ops, bind;
        }
        fi_profile {
            fi_profile_reset(prof_fid: *mut fid_profile, flags: u64)
                => fid_profile.ops, reset;
            fi_profile_query_vars(
                prof_fid: *mut fid_profile, varlist: *mut fi_profile_desc, count: *mut usize
            ) -> ssize_t
                => fid_profile.ops, query_vars;
            fi_profile_query_events(
                prof_fid: *mut fid_profile, eventlist: *mut fi_profile_desc, count: *mut usize
            ) -> ssize_t
                => fid_profile.ops, query_events;
            fi_profile_start_reads(prof_fid: *mut fid_profile, flags: u64)
                => fid_profile.ops, start_reads;
            fi_profile_end_reads(prof_fid: *mut fid_profile, flags: u64)
                => fid_profile.ops, end_reads;
            fi_profile_close(prof_fid: *mut fid_profile) -> c_int
                => fid_profile.fid.ops, close;
        }
        fi_xpu {
            fi_xpu_ctx(
                domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx,
                context: *mut c_void
            ) -> c_int
                => fid_domain.ops, xpu_ctx, guarded;
            fi_xpu_ctx_query(ctx: *mut fid_xpu_ctx, attr: *mut fi_xpu_ctx_attr) -> c_int
                => fid_xpu_ctx.ops, query;
        }
        }
    };
}

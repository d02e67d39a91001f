//! An endpoint sends a tagged message to itself, over the bindings ofi-libfabric-sys.
use ofi_libfabric_sys::bindgen as ofi;
use std::ffi::{c_int, CStr};
use std::ptr::{addr_of_mut, null, null_mut};

/// Ends the program if a call has failed.
fn check(call: &str, code: c_int) {
    // SAFETY: the text is a constant of the library.
    let text = unsafe { CStr::from_ptr(ofi::fi_strerror(-code)) };
    assert!(code == 0, "{call}: {}", text.to_string_lossy());
}

/// Opens an object by a call that writes its address.
fn opened<T>(call: &str, open: impl FnOnce(*mut *mut T) -> c_int) -> *mut T {
    let mut object = null_mut();
    check(call, open(&mut object));
    object
}

fn main() {
    let sent = *b"a message of the endpoint to itself";
    let mut received = [0u8; 64];
    // SAFETY: objects are used while they are open, and the buffers until both transfers are complete.
    unsafe {
        let hints = ofi::fi_allocinfo();
        (*hints).caps = u64::from(ofi::FI_TAGGED);
        (*(*hints).ep_attr).type_ = ofi::fi_ep_type_FI_EP_RDM;
        let version = ofi::FI_MAJOR_VERSION << 16 | ofi::FI_MINOR_VERSION;
        let info =
            opened("fi_getinfo", |info| ofi::fi_getinfo(version, null(), null(), 0, hints, info));
        let fabric = opened("fi_fabric", |f| ofi::fi_fabric((*info).fabric_attr, f, null_mut()));
        let domain = opened("fi_domain", |d| ofi::fi_domain(fabric, info, d, null_mut()));
        let mut attr =
            ofi::fi_cq_attr { format: ofi::fi_cq_format_FI_CQ_FORMAT_TAGGED, ..Default::default() };
        let cq = opened("fi_cq_open", |cq| ofi::fi_cq_open(domain, &mut attr, cq, null_mut()));
        let mut attr = ofi::fi_av_attr::default();
        let av = opened("fi_av_open", |av| ofi::fi_av_open(domain, &mut attr, av, null_mut()));
        let ep = opened("fi_endpoint", |ep| ofi::fi_endpoint(domain, info, ep, null_mut()));
        let both = u64::from(ofi::FI_TRANSMIT | ofi::FI_RECV);
        check("fi_ep_bind", ofi::fi_ep_bind(ep, addr_of_mut!((*cq).fid), both));
        check("fi_ep_bind", ofi::fi_ep_bind(ep, addr_of_mut!((*av).fid), 0));
        check("fi_enable", ofi::fi_enable(ep));

        let (mut name, mut len) = ([0u8; 128], 128);
        check(
            "fi_getname",
            ofi::fi_getname(addr_of_mut!((*ep).fid), name.as_mut_ptr().cast(), &mut len),
        );
        let mut own = 0;
        assert_eq!(ofi::fi_av_insert(av, name.as_ptr().cast(), 1, &mut own, 0, null_mut()), 1);
        let to = received.as_mut_ptr().cast();
        check(
            "fi_trecv",
            ofi::fi_trecv(ep, to, received.len(), null_mut(), own, 7, 0, null_mut()) as c_int,
        );
        let from = sent.as_ptr().cast();
        loop {
            match ofi::fi_tsend(ep, from, sent.len(), null_mut(), own, 7, null_mut()) as c_int {
                0 => break,
                code if code == -(ofi::FI_EAGAIN as c_int) => ofi::fi_cq_read(cq, null_mut(), 0),
                code => return check("fi_tsend", code),
            };
        }
        let mut done = 0;
        while done < 2 {
            let mut entry = ofi::fi_cq_tagged_entry::default();
            match ofi::fi_cq_read(cq, addr_of_mut!(entry).cast(), 1) as c_int {
                1 => done += 1,
                code if code == -(ofi::FI_EAGAIN as c_int) => {}
                code => return check("fi_cq_read", code),
            }
        }
        let provider = CStr::from_ptr((*(*info).fabric_attr).prov_name);
        let text = std::str::from_utf8(&received[..sent.len()]).unwrap();
        println!("{}: received '{text}'", provider.to_string_lossy());
        for object in [
            addr_of_mut!((*ep).fid),
            addr_of_mut!((*av).fid),
            addr_of_mut!((*cq).fid),
            addr_of_mut!((*domain).fid),
            addr_of_mut!((*fabric).fid),
        ] {
            check("fi_close", ofi::fi_close(object));
        }
        ofi::fi_freeinfo(info);
        ofi::fi_freeinfo(hints);
    }
}

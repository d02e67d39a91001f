//! Unit tests of `owned`.
use super::*;
use crate::abi::{FI_MSG, FI_TAGGED};

fn sample() -> InfoBuf {
    let mut info = InfoBuf::new().unwrap();
    info.set_caps(FI_MSG);
    info.set_domain_name(c"eth0").unwrap();
    info.set_fabric_name(c"192.0.2.0/24").unwrap();
    info.set_prov_name(c"tcp").unwrap();
    info.set_src_addr(Some(&[1, 2, 3])).unwrap();
    info.tx_mut().tclass = 7;
    info.edit_domain(|domain| {
        domain.cntr_cnt = 5;
        domain.max_cntr_value = 9;
    });
    info
}

#[test]
fn copy_is_equal_and_independent() {
    let copy = sample().as_ref().to_owned().unwrap();
    let info = copy.as_ref();
    assert_eq!(info.domain_name(), Some(c"eth0"));
    assert_eq!(info.fabric_name(), Some(c"192.0.2.0/24"));
    assert_eq!(info.prov_name(), Some(c"tcp"));
    assert_eq!(info.src_addr(), Some(&[1, 2, 3][..]));
    assert_eq!(info.dest_addr(), None);
    assert_eq!(copy.tx().tclass, 7);
}

#[test]
fn members_missing_in_older_api_versions_are_not_read() {
    let info = sample();
    // SAFETY: a current info is valid as any older generation.
    let old = unsafe { InfoBuf::from_level(info.as_ptr(), ApiLevel::V1_0) }.unwrap();
    assert_eq!((old.tx().tclass, old.domain().cntr_cnt), (0, 0));
    assert_eq!(old.as_ref().domain_name(), Some(c"eth0"));
    // SAFETY: as above.
    let old = unsafe { InfoBuf::from_level(info.as_ptr(), ApiLevel::V1_8) }.unwrap();
    assert_eq!((old.domain().cntr_cnt, old.domain().max_cntr_value), (5, 0));
}

/// The beginning of a structure, at the very end of readable memory.
///
/// # Safety
/// `from` is valid for `size` bytes.
unsafe fn at_the_end<T>(from: *const T, size: usize) -> *mut T {
    let size = size.next_multiple_of(align_of::<T>());
    let page = 4096;
    // SAFETY: two new pages, the second without access rights; the first holds the structure.
    // The test leaves them mapped.
    unsafe {
        let pages = libc::mmap(
            ptr::null_mut(),
            2 * page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(pages, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(pages.byte_add(page), page, libc::PROT_NONE), 0);
        let at = pages.byte_add(page - size);
        ptr::copy_nonoverlapping(from.cast::<u8>(), at.cast(), size);
        at.cast()
    }
}

#[test]
fn nothing_behind_the_structures_of_an_older_generation_is_touched() {
    let full = sample();
    for level in [
        ApiLevel::V1_0,
        ApiLevel::V1_1,
        ApiLevel::V1_2,
        ApiLevel::V1_3,
        ApiLevel::V1_7,
        ApiLevel::V1_8,
        ApiLevel::V1_9,
        ApiLevel::V1_10,
    ] {
        // SAFETY: the sample is current, which is as long as any older one;
        // the copies share its names, which live on.
        let copy = unsafe {
            let mut info = *full.as_ptr();
            info.tx_attr = at_the_end(info.tx_attr, level.tx());
            info.rx_attr = at_the_end(info.rx_attr, size_of::<fi_rx_attr>());
            info.ep_attr = at_the_end(info.ep_attr, level.ep());
            info.domain_attr = at_the_end(info.domain_attr, level.domain());
            info.fabric_attr = at_the_end(info.fabric_attr, level.fabric());
            InfoBuf::from_level(at_the_end(&info, level.info()), level)
        };
        let copy = copy.unwrap();
        assert_eq!(copy.as_ref().domain_name(), Some(c"eth0"), "{level:?}");
        assert_eq!(copy.tx().tclass, if level < ApiLevel::V1_3 { 0 } else { 7 }, "{level:?}");
    }
}

#[test]
fn the_sizes_of_the_generations_are_those_of_their_releases() {
    let levels = [
        ApiLevel::V1_0,
        ApiLevel::V1_1,
        ApiLevel::V1_2,
        ApiLevel::V1_3,
        ApiLevel::V1_7,
        ApiLevel::V1_8,
        ApiLevel::V1_9,
    ];
    // With addresses of 32 bits they depend on the alignment of u64 as well.
    if cfg!(target_pointer_width = "64") {
        assert_eq!(levels.map(ApiLevel::domain), [120, 184, 184, 192, 200, 208, 224]);
        assert_eq!(levels.map(ApiLevel::info), [112, 112, 120, 120, 120, 120, 120]);
        assert_eq!(levels.map(ApiLevel::ep), [80, 96, 96, 96, 96, 96, 96]);
        assert_eq!(levels.map(ApiLevel::tx), [72, 72, 72, 80, 80, 80, 80]);
    }
    assert_eq!(ApiLevel::of_release(version(1, 17)), ApiLevel::V1_3);
    assert_eq!(ApiLevel::of_release(version(2, 6)), ApiLevel::V1_9);
}

#[test]
fn edit_cannot_replace_owned_pointers() {
    let mut info = sample();
    info.edit_domain(|domain| {
        domain.name = ptr::dangling_mut();
        domain.ep_cnt = 3;
    });
    assert_eq!(info.as_ref().domain_name(), Some(c"eth0"));
    assert_eq!(info.domain().ep_cnt, 3);
}

#[test]
fn a_chain_goes_to_c_and_back_in_order() {
    let mut second = sample();
    second.set_caps(FI_TAGGED);
    let chain = InfoChain::from_iter([sample(), second]);
    // SAFETY: the list was just passed on and has no other owner.
    let chain = unsafe { InfoChain::from_raw(chain.into_raw()) }.unwrap();
    assert_eq!(chain.iter().map(InfoRef::caps).collect::<Vec<_>>(), [FI_MSG, FI_TAGGED]);
    assert!(InfoChain::new().into_raw().is_null());
}

#[test]
fn a_raw_copy_keeps_missing_attributes_missing() {
    let bare = fi_info { caps: FI_MSG, ..zero_info() };
    // SAFETY: an info without attributes is valid.
    let copy = unsafe { dup_raw(&bare, ApiLevel::CURRENT) }.unwrap();
    // SAFETY: new and ours.
    unsafe {
        assert!(copy.as_ref().tx_attr.is_null() && copy.as_ref().domain_attr.is_null());
        free_raw(copy.as_ptr());
    }
}

fn zero_info() -> fi_info {
    // SAFETY: numbers and pointers only.
    unsafe { core::mem::zeroed() }
}

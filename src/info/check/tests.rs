//! Unit tests of `check`.
use super::*;
use crate::info::API_VERSION;

const ALL: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | MODIFIER_CAPS
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | COMM_CAPS;

fn offer() -> ProviderOffer {
    let mut most = InfoBuf::new().unwrap();
    most.set_caps(ALL);
    most.tx_mut().caps = FI_MSG | FI_TAGGED | FI_RMA | FI_SEND | FI_READ | FI_WRITE;
    most.rx_mut().caps = ALL & !(FI_SEND | FI_READ | FI_WRITE | COMM_CAPS);
    most.tx_mut().op_flags = FI_INJECT_COMPLETE | FI_COMPLETION;
    most.tx_mut().msg_order = FI_ORDER_SAS;
    most.tx_mut().size = 1024;
    most.rx_mut().size = 1024;
    most.tx_mut().inject_size = 128;
    most.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_RDM.into();
        ep.protocol = FI_PROTO_XNET as u32;
        ep.mem_tag_format = 0xff;
        ep.tx_ctx_cnt = 1;
        ep.rx_ctx_cnt = 1;
    });
    most.edit_domain(|domain| {
        domain.threading = fi_threading::FI_THREAD_SAFE.into();
        domain.data_progress = fi_progress::FI_PROGRESS_AUTO.into();
        domain.resource_mgmt = fi_resource_mgmt::FI_RM_ENABLED.into();
        domain.max_ep_tx_ctx = 1;
        domain.max_ep_rx_ctx = 1;
        domain.mr_key_size = 8;
    });
    ProviderOffer { most, tx_size: 256, rx_size: 256, costly_order: 0 }
}

/// Returns the rejections of hints made by `edit`.
fn mismatches(
    api: u32,
    offer: &ProviderOffer,
    edit: impl FnOnce(&mut InfoBuf),
) -> Vec<&'static str> {
    let mut hints = InfoBuf::new().unwrap();
    edit(&mut hints);
    check(api, offer, hints.as_ref()).iter().map(|mismatch| mismatch.what).collect()
}

fn answer(edit: impl FnOnce(&mut InfoBuf)) -> InfoBuf {
    let mut hints = InfoBuf::new().unwrap();
    edit(&mut hints);
    alter(API_VERSION, &offer(), Some(hints.as_ref())).unwrap()
}

#[test]
fn domain_caps_follow_domain_hints_or_else_info_hints() {
    let offered = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_AV_USER_ID | FI_PEER;
    for (wanted, caps, answer) in [
        (0, 0, FI_LOCAL_COMM | FI_REMOTE_COMM),
        (0, FI_MSG | FI_PEER, FI_LOCAL_COMM | FI_REMOTE_COMM | FI_PEER),
        (FI_LOCAL_COMM, FI_MSG | FI_PEER, FI_LOCAL_COMM | FI_REMOTE_COMM),
        (FI_PEER, FI_MSG | FI_AV_USER_ID, FI_LOCAL_COMM | FI_REMOTE_COMM | FI_PEER),
    ] {
        assert_eq!(answer_domain_caps(wanted, caps, offered), answer);
    }
    assert_eq!(answer_domain_caps(FI_PEER, FI_PEER, FI_LOCAL_COMM), FI_LOCAL_COMM);
}

#[test]
fn order_after_reads_is_provided_only_if_requested() {
    const AFTER_READS: u64 = FI_ORDER_WAR | FI_ORDER_SAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR;
    let mut offer = ProviderOffer { costly_order: AFTER_READS, ..offer() };
    offer.most.tx_mut().msg_order = AFTER_READS | FI_ORDER_SAS;
    offer.most.rx_mut().msg_order = AFTER_READS | FI_ORDER_SAS;
    offer.most.edit_ep(|ep| ep.max_order_war_size = 7);
    let orders = |tx, rx| {
        let mut hints = InfoBuf::new().unwrap();
        (hints.tx_mut().msg_order, hints.rx_mut().msg_order) = (tx, rx);
        assert!(check(API_VERSION, &offer, hints.as_ref()).is_empty());
        let info = alter(API_VERSION, &offer, Some(hints.as_ref())).unwrap();
        (info.tx().msg_order, info.rx().msg_order, info.ep().max_order_war_size)
    };
    const SAS: u64 = FI_ORDER_SAS;
    const WAR: u64 = FI_ORDER_ATOMIC_WAR;
    assert_eq!(orders(0, 0), (SAS, SAS, 0));
    assert_eq!(orders(WAR, 0), (SAS | WAR, SAS | WAR, 7));
    assert_eq!(orders(0, WAR), (SAS, SAS | WAR, 0));
    assert_eq!(orders(FI_ORDER_SAR, 0), (SAS | FI_ORDER_SAR, SAS | FI_ORDER_SAR, 0));
    assert_eq!(alter(API_VERSION, &offer, None).unwrap().tx().msg_order, SAS);
}

#[test]
fn hints_without_requests_get_all_capabilities() {
    assert!(mismatches(API_VERSION, &offer(), |_| ()).is_empty());
    assert_eq!(answer(|_| ()).caps(), ALL);
}

#[test]
fn primary_caps_need_a_request_and_secondary_caps_are_added() {
    let info = answer(|hints| hints.set_caps(FI_MSG));
    assert_eq!(info.caps(), FI_MSG | FI_SEND | FI_RECV | FI_MULTI_RECV | COMM_CAPS);
    assert_eq!(info.tx().caps, FI_MSG | FI_SEND);
    assert_eq!(info.rx().caps, FI_MSG | FI_RECV | FI_MULTI_RECV);
    let info = answer(|hints| hints.set_caps(FI_TAGGED | FI_SEND | FI_SOURCE));
    assert_eq!(info.caps() & (FI_SOURCE | FI_RECV | FI_MSG), FI_SOURCE);
    assert_eq!(info.tx().caps, FI_TAGGED | FI_SEND);
}

#[test]
fn side_with_explicit_capabilities_gets_exactly_those() {
    let info = answer(|hints| {
        hints.set_caps(FI_MSG | FI_TAGGED);
        hints.tx_mut().caps = FI_TAGGED | FI_SEND;
    });
    assert_eq!(info.tx().caps, FI_TAGGED | FI_SEND);
    assert_eq!(info.rx().caps & (FI_MSG | FI_TAGGED), FI_MSG | FI_TAGGED);
}

#[test]
fn missing_capabilities_are_named() {
    let mut hints = InfoBuf::new().unwrap();
    hints.set_caps(FI_MSG | FI_ATOMIC | FI_HMEM);
    let mismatches = check(API_VERSION, &offer(), hints.as_ref());
    assert_eq!((mismatches.len(), mismatches[0].what), (1, "caps"));
    assert_eq!(mismatches[0].why, "FI_ATOMIC, FI_HMEM are not offered");
}

#[test]
fn the_application_must_agree_to_the_modes_of_the_provider() {
    let mut offer = offer();
    offer.most.set_mode(FI_CONTEXT);
    assert_eq!(mismatches(API_VERSION, &offer, |_| ()), ["mode"]);
    assert!(mismatches(API_VERSION, &offer, |hints| hints.set_mode(u64::MAX)).is_empty());
}

#[test]
fn sizes_are_minimums_and_echoed() {
    let size = |size| mismatches(API_VERSION, &offer(), |hints| hints.tx_mut().size = size);
    assert!(size(1024).is_empty());
    assert_eq!(size(1025), ["tx_attr->size"]);
    assert_eq!(answer(|hints| hints.tx_mut().size = 10).tx().size, 10);
    assert_eq!(answer(|_| ()).tx().size, 256);
}

#[test]
fn endpoints_are_opened_within_the_largest_offer_of_their_type() {
    let (small, mut large) = (offer(), offer());
    large.most.rx_mut().size = 4096;
    large.most.tx_mut().iov_limit = 4;
    let limits = EndpointLimits::of([&small, &large]);
    let beyond = |edit: fn(&mut InfoBuf)| {
        let mut info = offer().most;
        edit(&mut info);
        limits.check(info.as_ref()).iter().map(|mismatch| mismatch.what).collect::<Vec<_>>()
    };
    assert!(beyond(|info| info.rx_mut().size = 4096).is_empty());
    assert_eq!(beyond(|info| info.rx_mut().size = 4097), ["rx_attr->size"]);
    assert_eq!(beyond(|info| info.tx_mut().inject_size = 129), ["tx_attr->inject_size"]);
    assert_eq!(beyond(|info| info.tx_mut().iov_limit = 5), ["tx_attr->iov_limit"]);
    assert_eq!(beyond(|info| info.tx_mut().rma_iov_limit = 1), ["tx_attr->rma_iov_limit"]);
    assert_eq!(beyond(|info| info.tx_mut().size = 1025), ["tx_attr->size"]);
    // Another type of endpoint has no limits here.
    let other = beyond(|info| {
        info.edit_ep(|ep| ep.r#type = fi_ep_type::FI_EP_MSG.into());
        info.tx_mut().size = 1025;
    });
    assert!(other.is_empty());
}

#[test]
fn threading_and_progress_levels_satisfy_weaker_requests() {
    let mut offer = offer();
    let completion = fi_threading::FI_THREAD_COMPLETION.into();
    offer.most.edit_domain(|domain| domain.threading = completion);
    for (threading, does) in [(0, true), (1, false), (2, false), (3, true), (4, true), (9, false)] {
        let no = mismatches(API_VERSION, &offer, |hints| {
            hints.edit_domain(|domain| domain.threading = c_enum::from_raw(threading));
        });
        assert_eq!(no.is_empty(), does, "{threading}");
    }
    let manual = fi_progress::FI_PROGRESS_MANUAL.into();
    offer.most.edit_domain(|domain| domain.data_progress = manual);
    for (progress, does) in [(0, true), (1, false), (2, true), (3, true), (4, false)] {
        let no = mismatches(API_VERSION, &offer, |hints| {
            hints.edit_domain(|domain| domain.data_progress = c_enum::from_raw(progress));
        });
        assert_eq!(no.is_empty(), does, "{progress}");
    }
}

#[test]
fn registration_modes_follow_the_version_of_the_application() {
    let mut offer = offer();
    let mr = |offer: &ProviderOffer, api, caps, mode| {
        mismatches(api, offer, |hints| {
            hints.set_caps(caps);
            hints.edit_domain(|domain| domain.mr_mode = mode);
        })
        .is_empty()
    };
    let (old, new) = (version(1, 4), version(1, 5));
    // A provider that needs nothing takes every way to say so.
    assert!(mr(&offer, old, FI_RMA, FI_MR_UNSPEC) && mr(&offer, old, FI_RMA, FI_MR_SCALABLE));
    assert!(!mr(&offer, old, FI_RMA, FI_MR_LOCAL));
    assert!(!mr(&offer, new, FI_RMA, FI_MR_BASIC | FI_MR_SCALABLE));
    assert!(!mr(&offer, new, FI_RMA, FI_MR_BASIC | FI_MR_LOCAL));
    // A provider with requirements matches only applications agreeing to them, unless they are
    // irrelevant.
    let needs = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    offer.most.edit_domain(|domain| domain.mr_mode = needs);
    assert!(mr(&offer, new, FI_RMA, FI_MR_BASIC) && mr(&offer, new, FI_RMA, needs));
    assert!(!mr(&offer, new, FI_RMA, FI_MR_SCALABLE) && !mr(&offer, new, FI_RMA, 0));
    assert!(!mr(&offer, old, FI_RMA, FI_MR_SCALABLE) && mr(&offer, old, FI_RMA, 0));
    assert!(mr(&offer, new, FI_MSG, 0) && mr(&offer, new, FI_RMA | FI_WRITE, 0));
    // FI_MR_LOCAL was a mode bit before it was this.
    offer.most.edit_domain(|domain| domain.mr_mode = FI_MR_LOCAL);
    assert!(!mr(&offer, old, FI_MSG, FI_MR_BASIC));
    let no = mismatches(old, &offer, |hints| hints.set_mode(FI_LOCAL_MR));
    assert!(no.is_empty(), "{no:?}");
}

#[test]
fn the_registration_mode_of_the_answer_is_the_one_asked_in() {
    let mode = |api, mode| {
        let mut hints = InfoBuf::new().unwrap();
        hints.edit_domain(|domain| domain.mr_mode = mode);
        alter(api, &offer(), Some(hints.as_ref())).unwrap().domain().mr_mode
    };
    assert_eq!(mode(version(1, 5), FI_MR_SCALABLE), FI_MR_SCALABLE);
    assert_eq!(mode(version(1, 4), FI_MR_UNSPEC), FI_MR_BASIC);
    // Bits that are not needed are cleared.
    assert_eq!(mode(version(1, 5), FI_MR_LOCAL | FI_MR_PROV_KEY), 0);
}

#[test]
fn attributes_newer_than_the_application_are_not_looked_at() {
    let counters = |hints: &mut InfoBuf| {
        hints.edit_domain(|domain| {
            domain.cntr_cnt = 1;
            domain.max_cntr_value = 1;
        });
    };
    assert!(mismatches(version(1, 4), &offer(), counters).is_empty());
    assert_eq!(mismatches(version(1, 5), &offer(), counters), ["domain_attr->cntr_cnt"]);
    assert_eq!(mismatches(version(2, 5), &offer(), counters).len(), 2);
}

#[test]
fn orders_protocols_contexts_and_flags_are_compared() {
    let refused = |edit: fn(&mut InfoBuf)| mismatches(API_VERSION, &offer(), edit);
    assert_eq!(refused(|h| h.tx_mut().msg_order = FI_ORDER_WAR), ["tx_attr->msg_order"]);
    assert_eq!(refused(|h| h.tx_mut().comp_order = 15), ["tx_attr->comp_order"]);
    assert_eq!(refused(|h| h.tx_mut().op_flags = FI_MORE), ["tx_attr->op_flags"]);
    assert_eq!(refused(|h| h.rx_mut().total_buffered_recv = 1), ["rx_attr->total_buffered_recv"]);
    assert_eq!(
        refused(|h| h.edit_ep(|ep| ep.protocol = FI_PROTO_UDP as u32)),
        ["ep_attr->protocol"]
    );
    assert_eq!(refused(|h| h.edit_ep(|ep| ep.tx_ctx_cnt = 2)), ["ep_attr->tx_ctx_cnt"]);
    assert_eq!(
        refused(|h| h.edit_ep(|ep| ep.rx_ctx_cnt = FI_SHARED_CONTEXT)),
        ["ep_attr->rx_ctx_cnt"]
    );
    // The size of an order that is not asked for does not matter.
    assert!(refused(|h| h.edit_ep(|ep| ep.max_order_war_size = 1)).is_empty());
    assert!(refused(|h| h.edit_ep(|ep| ep.mem_tag_format = 0x1ff)).is_empty());
    let tagged = |h: &mut InfoBuf| {
        h.set_caps(FI_TAGGED);
        h.edit_ep(|ep| ep.mem_tag_format = 0x1ff);
    };
    assert_eq!(refused(tagged), ["ep_attr->mem_tag_format"]);
}

#[test]
fn answered_info_is_accepted_as_hints() {
    let offer = offer();
    for caps in [0, FI_MSG, FI_TAGGED | FI_SOURCE, FI_RMA | FI_WRITE | FI_REMOTE_WRITE] {
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(caps);
        let info = alter(API_VERSION, &offer, Some(hints.as_ref())).unwrap();
        assert_eq!(check(API_VERSION, &offer, info.as_ref()), [], "{caps:#x}");
        let again = alter(API_VERSION, &offer, Some(info.as_ref())).unwrap();
        assert_eq!((again.caps(), again.rx().caps), (info.caps(), info.rx().caps));
    }
}

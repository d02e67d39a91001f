//! Comparison of an application's hints with a provider's offers (fi_getinfo(3)).
//!
//! [`check`] returns all reasons for rejecting an offer at once; [`alter`] creates the
//! application's info from a matching offer.
use crate::abi::*;
use crate::error::Result;
use crate::info::owned::{InfoBuf, InfoRef};
use crate::info::tostr;
use crate::info::version::version;
use core::ffi::c_int;
use core::fmt;

/// Capabilities enabled only on request of the application.
pub const PRIMARY_CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_TAGGED
    | FI_ATOMIC
    | FI_MULTICAST
    | FI_NAMED_RX_CTX
    | FI_DIRECTED_RECV
    | FI_TAGGED_DIRECTED_RECV
    | FI_TAGGED_MULTI_RECV
    | FI_EXACT_DIRECTED_RECV
    | FI_HMEM
    | FI_COLLECTIVE
    | FI_XPU
    | FI_AV_USER_ID
    | FI_PEER;

/// Capabilities with a cost, enabled only on request, although the manual counts them among the
/// secondary ones.
const ON_REQUEST: u64 = FI_SOURCE | FI_SOURCE_ERR | FI_TRIGGER;

/// Capabilities changing the behaviour visible to an application, so an application without
/// requests must not have them.
const ONLY_IF_ASKED: u64 =
    FI_SOURCE_ERR | FI_AV_USER_ID | FI_PEER | FI_TRIGGER | FI_COLLECTIVE | FI_MULTICAST;

/// Capabilities of a domain enabled only on request of the application, for the domain or for the
/// whole.
pub const ASKED_DOMAIN_CAPS: u64 = FI_AV_USER_ID | FI_PEER;

/// Capabilities selecting halves of a primary one.
pub const MODIFIER_CAPS: u64 = MSG_MODIFIERS | RMA_MODIFIERS;
const MSG_MODIFIERS: u64 = FI_SEND | FI_RECV;
const RMA_MODIFIERS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const COMM_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// Offer of a provider for one kind of endpoint.
#[derive(Debug)]
pub struct ProviderOffer {
    /// Maximum attributes: limits, all capabilities, and in `op_flags` all accepted default
    /// operation flags. `mr_mode` and `mode` are its requirements, `threading` and progress the
    /// strongest guarantees.
    pub most: InfoBuf,
    /// Default transmit size.
    pub tx_size: usize,
    /// Default receive size.
    pub rx_size: usize,
    /// Part of `msg_order` with a cost, enabled only on request.
    pub costly_order: u64,
}

/// Reason for a provider's rejection of hints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HintsMismatch {
    /// Name of the attribute, as in `domain_attr->mr_mode`.
    pub what: &'static str,
    /// Requested and available values, or the missing bits.
    pub why: String,
}

impl fmt::Display for HintsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

struct Rejections(Vec<HintsMismatch>);

impl Rejections {
    fn add(&mut self, what: &'static str, wanted: impl fmt::Display, have: impl fmt::Display) {
        self.0.push(HintsMismatch { what, why: format!("wanted {wanted}, have {have}") });
    }

    /// A bound from below: 0 asks for nothing.
    fn at_least(&mut self, what: &'static str, wanted: usize, have: usize) {
        if wanted > have {
            self.add(what, wanted, have);
        }
    }

    /// Several such bounds, in the same order.
    fn within(&mut self, wanted: &[NamedBound], have: &[NamedBound]) {
        wanted
            .iter()
            .zip(have)
            .for_each(|(wanted, have)| self.at_least(wanted.0, wanted.1, have.1));
    }

    /// Checks bits of the application; the provider must have all of them.
    fn subset(&mut self, what: &'static str, wanted: u64, have: u64, names: fn(u64) -> String) {
        self.0.extend(not_offered(what, wanted & !have, names));
    }

    /// Checks bits of the provider; the application must accept all of them.
    fn accepted(&mut self, what: &'static str, needs: u64, takes: u64, names: fn(u64) -> String) {
        let missing = needs & !takes;
        if missing != 0 {
            let why = format!("{} must be accepted", names(missing));
            self.0.push(HintsMismatch { what, why });
        }
    }
}

/// Returns the rejection for missing bits, with their names alone, or `None` if there are no such
/// bits.
fn not_offered(
    what: &'static str,
    missing: u64,
    names: fn(u64) -> String,
) -> Option<HintsMismatch> {
    let verb = if missing.count_ones() > 1 { "are" } else { "is" };
    (missing != 0)
        .then(|| HintsMismatch { what, why: format!("{} {verb} not offered", names(missing)) })
}

/// Returns the reasons for rejecting the offer for these hints of an application with this API
/// version; none if it matches. Names of fabric, domain and provider, and addresses, are not
/// checked here.
pub fn check(api: u32, offer: &ProviderOffer, hints: InfoRef<'_>) -> Vec<HintsMismatch> {
    let mut no = Rejections(Vec::new());
    let most = offer.most.as_ref();
    no.subset("caps", hints.caps(), most.caps(), tostr::caps);
    no.accepted("mode", most.mode(), hints.mode(), tostr::mode);
    check_ep(&mut no, api, offer, hints);
    check_domain(&mut no, api, offer, hints);
    check_tx(&mut no, offer, hints);
    check_rx(&mut no, offer, hints);
    no.0
}

fn check_ep(no: &mut Rejections, api: u32, offer: &ProviderOffer, hints: InfoRef<'_>) {
    let Some(want) = hints.ep() else { return };
    let (have, domain) = (offer.most.ep(), offer.most.domain());
    if want.r#type != fi_ep_type::FI_EP_UNSPEC && want.r#type != have.r#type {
        no.add(
            "ep_attr->type",
            tostr::ep_type(want.r#type.raw()),
            tostr::ep_type(have.r#type.raw()),
        );
    }
    if want.protocol != 0 && want.protocol != have.protocol {
        no.add("ep_attr->protocol", tostr::protocol(want.protocol), tostr::protocol(have.protocol));
    }
    // An endpoint of a newer version of a protocol talks with those of older ones.
    if want.protocol_version > have.protocol_version {
        no.add("ep_attr->protocol_version", want.protocol_version, have.protocol_version);
    }
    no.at_least("ep_attr->max_msg_size", want.max_msg_size, have.max_msg_size);
    if have.msg_prefix_size != 0 {
        // A program that does not know the prefix did not set FI_MSG_PREFIX either.
        no.at_least("ep_attr->msg_prefix_size", want.msg_prefix_size, have.msg_prefix_size);
    }
    // The sizes bound an ordering; without the ordering they say nothing.
    let order = hints.tx().map_or(0, |tx| tx.msg_order) | hints.rx().map_or(0, |rx| rx.msg_order);
    for (what, bits, want, have) in [
        (
            "ep_attr->max_order_raw_size",
            FI_ORDER_RAW | FI_ORDER_RMA_RAW | FI_ORDER_ATOMIC_RAW,
            want.max_order_raw_size,
            have.max_order_raw_size,
        ),
        (
            "ep_attr->max_order_war_size",
            FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR,
            want.max_order_war_size,
            have.max_order_war_size,
        ),
        (
            "ep_attr->max_order_waw_size",
            FI_ORDER_WAW | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_WAW,
            want.max_order_waw_size,
            have.max_order_waw_size,
        ),
    ] {
        if order & bits != 0 {
            no.at_least(what, want, have);
        }
    }
    let tag_bits = |format: u64| u64::BITS - format.leading_zeros();
    if hints.caps() & FI_TAGGED != 0
        && tag_bits(want.mem_tag_format) > tag_bits(have.mem_tag_format)
    {
        no.add(
            "ep_attr->mem_tag_format",
            format_args!("{:#x}", want.mem_tag_format),
            format_args!("{:#x}", have.mem_tag_format),
        );
    }
    let shared = |count: usize| count == FI_SHARED_CONTEXT;
    let contexts = |count: usize| {
        if shared(count) { "FI_SHARED_CONTEXT".to_owned() } else { count.to_string() }
    };
    for (what, want, have, max) in [
        ("ep_attr->tx_ctx_cnt", want.tx_ctx_cnt, have.tx_ctx_cnt, domain.max_ep_tx_ctx),
        ("ep_attr->rx_ctx_cnt", want.rx_ctx_cnt, have.rx_ctx_cnt, domain.max_ep_rx_ctx),
    ] {
        if shared(want) != shared(have) && (shared(want) || want != 0) {
            no.add(what, contexts(want), contexts(have));
        } else if !shared(want) && want > max {
            no.add(what, want, max);
        }
    }
    if api >= version(1, 5) && want.auth_key_size != 0 && want.auth_key_size != have.auth_key_size {
        no.add("ep_attr->auth_key_size", want.auth_key_size, have.auth_key_size);
    }
}

fn check_domain(no: &mut Rejections, api: u32, offer: &ProviderOffer, hints: InfoRef<'_>) {
    let Some(want) = hints.domain() else { return };
    let have = offer.most.domain();
    if threading_rank(want.threading).is_none_or(|rank| Some(rank) < threading_rank(have.threading))
    {
        no.add(
            "domain_attr->threading",
            tostr::threading(want.threading.raw()),
            tostr::threading(have.threading.raw()),
        );
    }
    if progress_rank(want.data_progress)
        .is_none_or(|rank| Some(rank) < progress_rank(have.data_progress))
    {
        no.add(
            "domain_attr->progress",
            tostr::progress(want.data_progress.raw()),
            tostr::progress(have.data_progress.raw()),
        );
    }
    let rm = want.resource_mgmt;
    if rm.raw() > fi_resource_mgmt::FI_RM_ENABLED as u32
        || rm == fi_resource_mgmt::FI_RM_ENABLED
            && have.resource_mgmt != fi_resource_mgmt::FI_RM_ENABLED
    {
        no.add(
            "domain_attr->resource_mgmt",
            tostr::resource_mgmt(rm.raw()),
            tostr::resource_mgmt(have.resource_mgmt.raw()),
        );
    }
    let av = want.av_type;
    if av.raw() > fi_av_type::FI_AV_TABLE as u32
        || have.av_type != fi_av_type::FI_AV_UNSPEC
            && av != fi_av_type::FI_AV_UNSPEC
            && av != have.av_type
    {
        no.add(
            "domain_attr->av_type",
            tostr::av_type(av.raw()),
            tostr::av_type(have.av_type.raw()),
        );
    }
    check_mr_mode(no, api, offer, hints, want.mr_mode);
    no.at_least("domain_attr->cq_data_size", want.cq_data_size, have.cq_data_size);
    if hints.caps() & (FI_RMA | FI_ATOMIC) != 0 {
        no.at_least("domain_attr->mr_key_size", want.mr_key_size, have.mr_key_size);
    }
    if api >= version(1, 5) {
        no.at_least("domain_attr->cntr_cnt", want.cntr_cnt, have.cntr_cnt);
        no.at_least("domain_attr->mr_iov_limit", want.mr_iov_limit, have.mr_iov_limit);
        no.at_least("domain_attr->max_err_data", want.max_err_data, have.max_err_data);
        no.at_least("domain_attr->mr_cnt", want.mr_cnt, have.mr_cnt);
        no.subset("domain_attr->caps", want.caps, have.caps, tostr::caps);
        if want.auth_key_size != 0 && want.auth_key_size != have.auth_key_size {
            no.add("domain_attr->auth_key_size", want.auth_key_size, have.auth_key_size);
        }
    }
    if api >= version(1, 20) {
        no.at_least("domain_attr->max_ep_auth_key", want.max_ep_auth_key, have.max_ep_auth_key);
    }
    if api >= version(2, 0) && want.max_group_id > have.max_group_id {
        no.add("domain_attr->max_group_id", want.max_group_id, have.max_group_id);
    }
    if api >= version(2, 5) {
        for (what, want, have) in [
            ("domain_attr->max_cntr_value", want.max_cntr_value, have.max_cntr_value),
            ("domain_attr->max_err_cntr_value", want.max_err_cntr_value, have.max_err_cntr_value),
        ] {
            if want > have {
                no.add(what, want, have);
            }
        }
    }
}

fn check_mr_mode(
    no: &mut Rejections,
    api: u32,
    offer: &ProviderOffer,
    hints: InfoRef<'_>,
    want: c_int,
) {
    let needs = mr_mode_needed(hints.caps(), offer.most.caps(), offer.most.domain().mr_mode);
    let takes = match want {
        FI_MR_BASIC => MR_BASIC_BITS | local_mr(hints),
        FI_MR_SCALABLE => local_mr(hints),
        // Before 1.5 nothing said means both of the above will do.
        FI_MR_UNSPEC if api < version(1, 5) => MR_BASIC_BITS | local_mr(hints),
        bits if api < version(1, 5) || bits & (FI_MR_BASIC | FI_MR_SCALABLE) != 0 => {
            no.add(
                "domain_attr->mr_mode",
                tostr::mr_mode(bits as u64),
                "FI_MR_BASIC or FI_MR_SCALABLE alone, or bits from version 1.5 on",
            );
            return;
        }
        bits => bits,
    };
    // The application must be ready for everything the provider needs.
    no.accepted("domain_attr->mr_mode", needs as u64, takes as u64, tostr::mr_mode);
}

const MR_BASIC_BITS: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Returns the mode bit equivalent to FI_MR_LOCAL before its introduction.
fn local_mr(hints: InfoRef<'_>) -> c_int {
    if hints.mode() & FI_LOCAL_MR != 0 { FI_MR_LOCAL } else { 0 }
}

/// Returns the provider's registration requirements relevant for these caps; 0 caps are all of the
/// provider.
fn mr_mode_needed(caps: u64, all: u64, needs: c_int) -> c_int {
    let caps = if caps == 0 { all } else { caps };
    let mut needs = needs;
    if caps & FI_HMEM == 0 {
        needs &= !FI_MR_HMEM;
    }
    if caps & FI_COLLECTIVE == 0 {
        needs &= !FI_MR_COLLECTIVE;
    }
    if !is_rma_target(caps) {
        needs &= !(FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_RAW | FI_MR_RMA_EVENT);
        if needs & (FI_MR_LOCAL | FI_MR_HMEM) == 0 {
            // Nothing is ever registered.
            needs &= !(FI_MR_ALLOCATED | FI_MR_ENDPOINT | FI_MR_MMU_NOTIFY);
        }
    }
    needs
}

fn is_rma_target(caps: u64) -> bool {
    caps & (FI_RMA | FI_ATOMIC) != 0
        && (caps & RMA_MODIFIERS == 0 || caps & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0)
}

/// Returns the rank of a threading level; a lower one permits more concurrency. Returns `None` for
/// an invalid value.
fn threading_rank(threading: c_enum<fi_threading>) -> Option<u8> {
    use fi_threading::*;
    [
        (FI_THREAD_SAFE, 0),
        // Retired levels between safe and completion; only safe gives them.
        (FI_THREAD_FID, 0),
        (FI_THREAD_ENDPOINT, 0),
        (FI_THREAD_COMPLETION, 1),
        (FI_THREAD_DOMAIN, 2),
        (FI_THREAD_UNSPEC, 3),
    ]
    .into_iter()
    .find_map(|(level, rank)| (threading == level).then_some(rank))
}

/// Returns the rank of a progress model; a lower one requires less of the application.
fn progress_rank(progress: c_enum<fi_progress>) -> Option<u8> {
    use fi_progress::*;
    [
        (FI_PROGRESS_AUTO, 0),
        (FI_PROGRESS_MANUAL, 1),
        (FI_PROGRESS_CONTROL_UNIFIED, 2),
        (FI_PROGRESS_UNSPEC, 3),
    ]
    .into_iter()
    .find_map(|(level, rank)| (progress == level).then_some(rank))
}

fn check_tx(no: &mut Rejections, offer: &ProviderOffer, hints: InfoRef<'_>) {
    let Some(want) = hints.tx() else { return };
    let have = offer.most.tx();
    no.subset("tx_attr->caps", want.caps, offer.most.caps(), tostr::caps);
    no.subset("tx_attr->op_flags", want.op_flags, have.op_flags, tostr::op_flags);
    no.subset("tx_attr->msg_order", want.msg_order, have.msg_order, tostr::msg_order);
    no.subset("tx_attr->comp_order", want.comp_order, have.comp_order, tostr::msg_order);
    no.within(&tx_bounds(want), &tx_bounds(have));
}

fn check_rx(no: &mut Rejections, offer: &ProviderOffer, hints: InfoRef<'_>) {
    let Some(want) = hints.rx() else { return };
    let have = offer.most.rx();
    no.subset("rx_attr->caps", want.caps, offer.most.caps(), tostr::caps);
    no.subset("rx_attr->op_flags", want.op_flags, have.op_flags, tostr::op_flags);
    no.subset("rx_attr->msg_order", want.msg_order, have.msg_order, tostr::msg_order);
    no.subset("rx_attr->comp_order", want.comp_order, have.comp_order, tostr::msg_order);
    no.at_least("rx_attr->total_buffered_recv", want.total_buffered_recv, have.total_buffered_recv);
    no.within(&rx_bounds(want), &rx_bounds(have));
}

/// Largest attributes for opening endpoints (fi_endpoint(3)), by their type: sizes of queues in
/// operations, of injected messages in bytes, and numbers of segments.
#[derive(Debug, Default)]
pub struct EndpointLimits(Vec<TypeLimits>);

#[derive(Debug)]
struct TypeLimits {
    ep_type: c_enum<fi_ep_type>,
    tx: [NamedBound; 4],
    rx: [NamedBound; 2],
}

/// The name of an attribute, and its value.
type NamedBound = (&'static str, usize);

/// Returns the limited attributes of a transmit context.
fn tx_bounds(tx: &fi_tx_attr) -> [NamedBound; 4] {
    [
        ("tx_attr->inject_size", tx.inject_size),
        ("tx_attr->size", tx.size),
        ("tx_attr->iov_limit", tx.iov_limit),
        ("tx_attr->rma_iov_limit", tx.rma_iov_limit),
    ]
}

/// Returns the limited attributes of a receive context.
fn rx_bounds(rx: &fi_rx_attr) -> [NamedBound; 2] {
    [("rx_attr->size", rx.size), ("rx_attr->iov_limit", rx.iov_limit)]
}

/// Raises each limit to the one of `other` if it is larger.
fn widen(bounds: &mut [NamedBound], other: &[NamedBound]) {
    bounds.iter_mut().zip(other).for_each(|(bound, other)| bound.1 = bound.1.max(other.1));
}

impl EndpointLimits {
    /// Returns the limits of offers: of several offers of one type, the largest.
    pub fn of<'a>(offers: impl IntoIterator<Item = &'a ProviderOffer>) -> Self {
        let mut limits = Self::default();
        offers.into_iter().for_each(|offer| limits.admit(offer.most.as_ref()));
        limits
    }

    /// Permits endpoints opened with this info, as for one returned by fi_getinfo(3).
    pub fn admit(&mut self, info: InfoRef<'_>) {
        let (Some(tx), Some(rx)) = (info.tx(), info.rx()) else { return };
        let (ep_type, tx, rx) = (info.ep_type(), tx_bounds(tx), rx_bounds(rx));
        match self.0.iter_mut().find(|limits| limits.ep_type == ep_type) {
            Some(limits) => {
                widen(&mut limits.tx, &tx);
                widen(&mut limits.rx, &rx);
            }
            None => self.0.push(TypeLimits { ep_type, tx, rx }),
        }
    }

    /// Returns true if there are limits for endpoints of the info's type.
    pub fn has_type(&self, info: InfoRef<'_>) -> bool {
        self.0.iter().any(|limits| limits.ep_type == info.ep_type())
    }

    /// Returns the attributes of the info exceeding the limits of its type of endpoint; none for a
    /// type without limits.
    pub fn check(&self, info: InfoRef<'_>) -> Vec<HintsMismatch> {
        let mut no = Rejections(Vec::new());
        let limits = self.0.iter().find(|limits| limits.ep_type == info.ep_type());
        let (Some(limits), Some(tx), Some(rx)) = (limits, info.tx(), info.rx()) else {
            return no.0;
        };
        no.within(&tx_bounds(tx), &limits.tx);
        no.within(&rx_bounds(rx), &limits.rx);
        no.0
    }
}

/// Returns the capabilities of the answer: the requested ones, their implications, and the ones
/// without cost. No request means everything.
fn answer_caps(wanted: u64, offer: &InfoBuf) -> u64 {
    let offered = offer.caps();
    if wanted == 0 {
        let groups = match offer.ep().r#type == fi_ep_type::FI_EP_DGRAM {
            // The network does all of it.
            true => offered & FI_MULTICAST,
            false => 0,
        };
        return (offered & !ONLY_IF_ASKED) | groups;
    }
    implied_caps(wanted, offered)
}

/// Returns the capabilities implied by the request for one side, possibly none.
fn implied_caps(wanted: u64, offered: u64) -> u64 {
    let mut caps = wanted & offered & (PRIMARY_CAPS | MODIFIER_CAPS);
    caps |= offered & !(PRIMARY_CAPS | MODIFIER_CAPS | ON_REQUEST);
    caps |= wanted & ON_REQUEST;
    if caps & (FI_MSG | FI_TAGGED) != 0 && caps & MSG_MODIFIERS == 0 {
        caps |= MSG_MODIFIERS;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & RMA_MODIFIERS == 0 {
        caps |= RMA_MODIFIERS;
    }
    caps & offered
}

/// Returns the capabilities of a domain: the ones requested for it by the hints, or else those of
/// the whole, and the ones of all domains of the provider.
fn answer_domain_caps(wanted: u64, caps: u64, offered: u64) -> u64 {
    let chosen = if wanted == 0 { caps } else { wanted };
    offered & (chosen | !ASKED_DOMAIN_CAPS)
}

/// Returns the application's info from an offer accepted by [`check`]. The caller fills in
/// addresses and names.
pub fn alter(api: u32, offer: &ProviderOffer, hints: Option<InfoRef<'_>>) -> Result<InfoBuf> {
    let mut info = offer.most.as_ref().to_owned()?;
    keep_asked_order(&mut info, offer.costly_order, hints);
    let (tx, rx) = (*offer.most.tx(), *offer.most.rx());
    let all = offer.most.caps();
    info.tx_mut().size = offer.tx_size;
    info.rx_mut().size = offer.rx_size;
    // By default an endpoint has none of the flags that the offer allows.
    info.tx_mut().op_flags = 0;
    info.rx_mut().op_flags = 0;

    let Some(hints) = hints else {
        let published_caps = answer_caps(0, &offer.most);
        info.set_caps(published_caps);
        info.tx_mut().caps &= published_caps;
        info.rx_mut().caps &= published_caps;
        let needs = offer.most.domain().mr_mode;
        info.edit_domain(|domain| {
            domain.mr_mode = answer_mr_mode(api, 0, needs);
            domain.caps = answer_domain_caps(0, published_caps, domain.caps);
        });
        return Ok(info);
    };

    let mut caps = answer_caps(hints.caps(), &offer.most);
    let want_mr = hints.domain().map_or(0, |domain| domain.mr_mode);
    let needs = mr_mode_needed(hints.caps(), all, offer.most.domain().mr_mode);
    let want_caps = hints.domain().map_or(0, |domain| domain.caps);
    info.edit_domain(|domain| {
        domain.mr_mode = answer_mr_mode(api, want_mr, needs);
        domain.caps = answer_domain_caps(want_caps, caps, domain.caps);
    });
    if hints.domain().is_none() && needs & !FI_MR_LOCAL != 0 && hints.caps() == 0 {
        // The application never said that it could meet the needs of a target.
        caps &= !(FI_REMOTE_READ | FI_REMOTE_WRITE);
    }
    info.set_caps(caps);
    // A side that names its own caps gets those; else what it has of the whole.
    let side = |wanted: u64, offered: u64| match (wanted, hints.caps()) {
        (0, 0) => caps & offered,
        (0, whole) => implied_caps(whole, offered),
        (wanted, _) => implied_caps(wanted, offered | wanted),
    };
    info.tx_mut().caps = side(hints.tx().map_or(0, |tx| tx.caps), tx.caps) & all;
    info.rx_mut().caps = side(hints.rx().map_or(0, |rx| rx.caps), rx.caps) & all;

    if let Some(want) = hints.tx() {
        let tx = info.tx_mut();
        tx.op_flags = want.op_flags;
        echo(&mut tx.inject_size, want.inject_size);
        echo(&mut tx.size, want.size);
        echo(&mut tx.iov_limit, want.iov_limit);
        echo(&mut tx.rma_iov_limit, want.rma_iov_limit);
    }
    if let Some(want) = hints.rx() {
        let rx = info.rx_mut();
        rx.op_flags = want.op_flags;
        echo(&mut rx.size, want.size);
        echo(&mut rx.iov_limit, want.iov_limit);
    }
    if caps & (FI_COLLECTIVE | FI_MULTICAST) != 0 {
        // The highest bit of tags is for the messages of collectives and groups.
        info.edit_ep(|ep| ep.mem_tag_format >>= 1);
    }
    if let Some(want) = hints.ep() {
        info.edit_ep(|ep| {
            echo(&mut ep.tx_ctx_cnt, want.tx_ctx_cnt);
            echo(&mut ep.rx_ctx_cnt, want.rx_ctx_cnt);
        });
    }
    if let Some(want) = hints.domain() {
        info.edit_domain(|domain| {
            use fi_threading::{FI_THREAD_COMPLETION, FI_THREAD_DOMAIN};
            if want.threading == FI_THREAD_COMPLETION || want.threading == FI_THREAD_DOMAIN {
                domain.threading = want.threading;
            }
            if want.data_progress != fi_progress::FI_PROGRESS_UNSPEC {
                domain.data_progress = want.data_progress;
                domain.control_progress = want.data_progress;
            }
            if want.av_type != fi_av_type::FI_AV_UNSPEC {
                domain.av_type = want.av_type;
            }
        });
    }
    Ok(info)
}

/// Removes costly orders not requested by hints from an answer: every endpoint of an info with such
/// orders would bear the cost.
fn keep_asked_order(info: &mut InfoBuf, costly: u64, hints: Option<InfoRef<'_>>) {
    const WAR: u64 = FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR;
    let tx = hints.and_then(InfoRef::tx).map_or(0, |tx| tx.msg_order);
    let rx = hints.and_then(InfoRef::rx).map_or(0, |rx| rx.msg_order);
    info.tx_mut().msg_order &= !costly | tx;
    info.rx_mut().msg_order &= !costly | tx | rx;
    if info.tx().msg_order & WAR == 0 {
        info.edit_ep(|ep| ep.max_order_war_size = 0);
    }
}

/// Zero asks for nothing in particular.
fn echo(field: &mut usize, wanted: usize) {
    if wanted != 0 {
        *field = wanted;
    }
}

fn answer_mr_mode(api: u32, want: c_int, needs: c_int) -> c_int {
    match want {
        FI_MR_BASIC | FI_MR_SCALABLE => want,
        _ if api < version(1, 5) => {
            // Old applications know only these two, and either does here.
            FI_MR_BASIC
        }
        _ => needs,
    }
}

/// Adjusts the reach of an info to its address: a loopback address reaches only this host. Returns
/// the reason if the hints request something else.
///
/// An application naming the address knows its reach: requesting both, it gets both. Otherwise the
/// answer is independent of the selection of the address, so it can serve as hints again.
pub fn fit_comm_caps(
    info: &mut InfoBuf,
    loopback: bool,
    named: bool,
    hints: Option<InfoRef<'_>>,
) -> core::result::Result<(), HintsMismatch> {
    let wanted = hints.map_or(0, InfoRef::caps) & COMM_CAPS;
    let caps = info.caps();
    let reach = match loopback {
        true if named && wanted & FI_REMOTE_COMM != 0 => caps,
        true => caps & !FI_REMOTE_COMM,
        false => caps,
    };
    if let Some(mismatch) = not_offered("caps", wanted & !reach, tostr::caps) {
        return Err(mismatch);
    }
    info.set_caps(reach);
    Ok(())
}

#[cfg(test)]
mod tests;

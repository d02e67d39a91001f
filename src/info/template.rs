//! Template of the offers of providers.
use super::check::ProviderOffer;
use super::owned::InfoBuf;
use crate::abi::{FI_SHARED_CONTEXT, fi_ep_type, fi_progress, fi_resource_mgmt, fi_threading};
use crate::error::Result;
use core::ffi::c_int;

/// Attributes of a provider for one kind of endpoint, by the names of fi_getinfo(3). Pairs are those
/// of the transmit and of the receive attributes.
///
/// The other attributes are those of a domain without restrictions: any threading, automatic
/// progress, managed resources and 64-bit counters.
#[derive(Clone, Debug)]
pub struct OfferTemplate {
    /// Type of the endpoints.
    pub ep_type: fi_ep_type,
    /// Protocol of the endpoints, and its version.
    pub protocol: u32,
    /// Version of the protocol.
    pub protocol_version: u32,
    /// All capabilities.
    pub caps: u64,
    /// Capabilities of transmit and receive attributes, as far as they are in `caps`.
    pub directed_caps: [u64; 2],
    /// Capabilities of the domain.
    pub domain_caps: u64,
    /// Requirements on the application.
    pub mode: u64,
    /// Accepted default operation flags.
    pub op_flags: [u64; 2],
    /// Guaranteed message orders.
    pub msg_order: [u64; 2],
    /// Subset of `msg_order` guaranteed only on request, because it is costly.
    pub costly_order: u64,
    /// Maximum bytes of an injected message.
    pub inject_size: usize,
    /// Maximum numbers of queued operations.
    pub max_sizes: [usize; 2],
    /// Default numbers of queued operations.
    pub sizes: [usize; 2],
    /// Maximum numbers of segments of a message.
    pub iov_limits: [usize; 2],
    /// Maximum number of remote segments of an operation.
    pub rma_iov_limit: usize,
    /// Traffic class.
    pub tclass: u32,
    /// Maximum bytes of a message.
    pub max_msg_size: usize,
    /// Maximum bytes of ordered operations: read after write, write after read, write after write.
    pub max_order_sizes: [usize; 3],
    /// Format of tags.
    pub mem_tag_format: u64,
    /// The endpoints share contexts.
    pub shared_contexts: [bool; 2],
    /// Maximum number of contexts of a scalable endpoint, of either kind.
    pub max_contexts: usize,
    /// Maximum number of endpoints, also of contexts, of a domain.
    pub ep_cnt: usize,
    /// Optimal number of completion queues of a domain.
    pub cq_cnt: usize,
    /// Required modes of memory registration.
    pub mr_mode: c_int,
    /// Bytes of a memory key.
    pub mr_key_size: usize,
    /// Maximum number of segments of a memory region.
    pub mr_iov_limit: usize,
    /// Bytes of remote CQ data.
    pub cq_data_size: usize,
}

impl Default for OfferTemplate {
    fn default() -> Self {
        Self {
            ep_type: fi_ep_type::FI_EP_RDM,
            protocol: 0,
            protocol_version: 1,
            caps: 0,
            directed_caps: [0; 2],
            domain_caps: 0,
            mode: 0,
            op_flags: [0; 2],
            msg_order: [0; 2],
            costly_order: 0,
            inject_size: 0,
            max_sizes: [0; 2],
            sizes: [0; 2],
            iov_limits: [0; 2],
            rma_iov_limit: 0,
            tclass: 0,
            max_msg_size: usize::MAX,
            max_order_sizes: [0; 3],
            mem_tag_format: 0,
            shared_contexts: [false; 2],
            max_contexts: 1,
            ep_cnt: 0,
            cq_cnt: 0,
            mr_mode: 0,
            mr_key_size: size_of::<u64>(),
            mr_iov_limit: 0,
            cq_data_size: size_of::<u64>(),
        }
    }
}

impl OfferTemplate {
    /// Builds the offer. Further attributes may be changed in [`ProviderOffer::most`].
    pub fn build(&self) -> Result<ProviderOffer> {
        let mut most = InfoBuf::new()?;
        most.set_caps(self.caps);
        most.set_mode(self.mode);

        let tx = most.tx_mut();
        [tx.op_flags, _] = self.op_flags;
        tx.caps = self.caps & self.directed_caps[0];
        tx.msg_order = self.msg_order[0];
        tx.inject_size = self.inject_size;
        tx.size = self.max_sizes[0];
        tx.iov_limit = self.iov_limits[0];
        tx.rma_iov_limit = self.rma_iov_limit;
        tx.tclass = self.tclass;

        let rx = most.rx_mut();
        [_, rx.op_flags] = self.op_flags;
        rx.caps = self.caps & self.directed_caps[1];
        rx.msg_order = self.msg_order[1];
        rx.size = self.max_sizes[1];
        rx.iov_limit = self.iov_limits[1];

        most.edit_ep(|ep| {
            ep.r#type = self.ep_type.into();
            ep.protocol = self.protocol;
            ep.protocol_version = self.protocol_version;
            ep.max_msg_size = self.max_msg_size;
            [ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size] =
                self.max_order_sizes;
            ep.mem_tag_format = self.mem_tag_format;
            [ep.tx_ctx_cnt, ep.rx_ctx_cnt] =
                self.shared_contexts.map(|shared| if shared { FI_SHARED_CONTEXT } else { 1 });
        });
        most.edit_domain(|domain| {
            domain.threading = fi_threading::FI_THREAD_SAFE.into();
            domain.control_progress = fi_progress::FI_PROGRESS_AUTO.into();
            domain.data_progress = fi_progress::FI_PROGRESS_AUTO.into();
            domain.resource_mgmt = fi_resource_mgmt::FI_RM_ENABLED.into();
            domain.mr_mode = self.mr_mode;
            domain.mr_key_size = self.mr_key_size;
            domain.mr_iov_limit = self.mr_iov_limit;
            domain.cq_data_size = self.cq_data_size;
            domain.cq_cnt = self.cq_cnt;
            domain.ep_cnt = self.ep_cnt;
            (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (self.ep_cnt, self.ep_cnt);
            (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (self.max_contexts, self.max_contexts);
            domain.max_cntr_value = u64::MAX;
            domain.max_err_cntr_value = u64::MAX;
            domain.caps = self.domain_caps;
        });
        let [tx_size, rx_size] = self.sizes;
        Ok(ProviderOffer { most, tx_size, rx_size, costly_order: self.costly_order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_MSG, FI_RECV, FI_RMA, FI_SEND, FI_TAGGED};

    #[test]
    fn pairs_are_those_of_transmit_and_receive_attributes() {
        let template = OfferTemplate {
            caps: FI_MSG | FI_SEND | FI_RECV,
            directed_caps: [FI_MSG | FI_RMA | FI_SEND, FI_MSG | FI_TAGGED | FI_RECV],
            op_flags: [1, 2],
            msg_order: [3, 4],
            max_sizes: [5, 6],
            sizes: [7, 8],
            iov_limits: [9, 10],
            shared_contexts: [false, true],
            ..OfferTemplate::default()
        };
        let ProviderOffer { most, tx_size, rx_size, .. } = template.build().unwrap();
        let (tx, rx, ep) = (most.tx(), most.rx(), most.ep());
        assert_eq!((tx.caps, rx.caps), (FI_MSG | FI_SEND, FI_MSG | FI_RECV));
        assert_eq!((tx.op_flags, rx.op_flags), (1, 2));
        assert_eq!((tx.msg_order, rx.msg_order), (3, 4));
        assert_eq!((tx.size, rx.size, tx_size, rx_size), (5, 6, 7, 8));
        assert_eq!((tx.iov_limit, rx.iov_limit), (9, 10));
        assert_eq!((ep.tx_ctx_cnt, ep.rx_ctx_cnt), (1, FI_SHARED_CONTEXT));
    }

    #[test]
    fn domain_is_without_restrictions_by_default() {
        let template = OfferTemplate {
            ep_cnt: 5,
            max_contexts: 3,
            max_order_sizes: [1, 2, 3],
            ..OfferTemplate::default()
        };
        let most = template.build().unwrap().most;
        let (domain, ep) = (most.domain(), most.ep());
        assert!(domain.threading == fi_threading::FI_THREAD_SAFE);
        assert!(domain.data_progress == fi_progress::FI_PROGRESS_AUTO);
        assert_eq!((domain.ep_cnt, domain.tx_ctx_cnt, domain.rx_ctx_cnt), (5, 5, 5));
        assert_eq!((domain.max_ep_tx_ctx, domain.max_ep_rx_ctx), (3, 3));
        assert_eq!((domain.max_cntr_value, domain.max_err_cntr_value), (u64::MAX, u64::MAX));
        assert!(ep.r#type == fi_ep_type::FI_EP_RDM && ep.protocol_version == 1);
        assert_eq!((ep.max_order_raw_size, ep.max_order_war_size), (1, 2));
        assert_eq!((ep.max_order_waw_size, ep.max_msg_size), (3, usize::MAX));
    }
}

//! Methods of a transport wrapper, of its links and of its provider, implemented by those below it.
//!
//! A method that all wrappers pass on unchanged is listed here once.

/// Implements methods of a trait by those of a field's type or, for associated functions, of a
/// type.
macro_rules! forward {
    ($field:ident: $(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(&self $(, $arg: $type)*) $(-> $out)? {
            self.$field.$name($($arg),*)
        }
    )*};
    ($carrier:ident: $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        fn $name($($arg: $type),*) -> $out {
            $carrier::$name($($arg),*)
        }
    )*};
}
pub(crate) use forward;

/// Implements the methods of [`ByteLink`](crate::transport::ByteLink) about settings, addresses and
/// connecting by those of a carrier of type `$carrier` in a field.
macro_rules! forward_link {
    ($field:ident: $carrier:ident) => {
        fn provider() -> &'static ofi_provider::provider::Provider {
            $carrier::provider()
        }

        #[inline(always)]
        fn settings() -> &'static $crate::settings::StreamSettings {
            $carrier::settings()
        }

        $crate::forward::forward! { $field:
            fn take_error(&self) -> ofi_provider::error::Result;
            fn local_addr(&self) -> ofi_provider::error::Result<ofi_provider::addr::Addr>;
            fn peer_addr(&self) -> ofi_provider::error::Result<ofi_provider::addr::Addr>;
            fn is_on_this_host(&self) -> bool;
            fn is_stalled(&self) -> bool;
            fn subflows(&self) -> u64;
            fn connect_limit(&self) -> Option<core::time::Duration>;
            fn silence_interval(&self) -> Option<core::time::Duration>;
            fn fd(&self) -> ofi_provider::error::Result<std::os::fd::RawFd>;
            fn waits(&self);
        }
    };
}
pub(crate) use forward_link;

/// Implements [`LinkClock`](crate::transport::LinkClock) for a wrapper by the transport in its
/// field `net`.
macro_rules! forward_clock {
    ($wrapper:ident) => {
        impl<N: $crate::transport::Transport> $crate::transport::LinkClock for $wrapper<N> {
            $crate::forward::forward! { net:
                fn now(&self) -> std::time::Instant;
                fn nanos(&self) -> u64;
            }
        }
    };
}
pub(crate) use forward_clock;

/// Implements the methods of [`Transport`](crate::transport::Transport) about its timer by the transport in
/// the field `net`.
macro_rules! forward_timer {
    () => {
        $crate::forward::forward! { net:
            fn set_timer(&self, delay: core::time::Duration);
            fn clear_timer(&self);
        }
    };
}
pub(crate) use forward_timer;

/// Implements the methods of [`Transport`](crate::transport::Transport) about waiting, and the calls
/// for several links, by the transport in the field `net`. `$carrier` returns the link below a link.
macro_rules! forward_transport {
    ($carrier:expr) => {
        $crate::forward::forward! { net:
            fn wait_fd(&self) -> std::os::fd::RawFd;
            fn start_flusher(
                &self,
                engine: std::sync::Weak<dyn $crate::transport::FlushTarget>
            ) -> ofi_provider::error::Result<N::Flusher>;
            fn process(&self) -> u32;
            fn is_ring(&self) -> bool;
        }

        #[inline(always)]
        fn transfer(
            &mut self,
            link: &Self::Link,
            op: $crate::transport::LinkOp<'_, '_>,
        ) -> ofi_provider::error::Result<usize> {
            if self.is_ring() { self.net.transfer($carrier(link), op) } else { op.on(link) }
        }

        fn send_each(&mut self, sends: &mut [$crate::transport::Sending<'_, Self::Link>]) {
            $crate::transport::send_each_below(&mut self.net, sends, $carrier);
        }

        fn receive_each(&mut self, receives: &mut [$crate::transport::Receiving<'_, Self::Link>]) {
            $crate::transport::receive_each_below(&mut self.net, receives, $carrier);
        }
    };
}
pub(crate) use forward_transport;

/// Implements the attributes in [`LinkProvider`](crate::objects::LinkProvider) by those of `$below`.
macro_rules! forward_attributes {
    ($below:ident) => {
        const CONTEXTS: bool = $below::CONTEXTS;

        $crate::forward::forward! { $below:
            fn getinfo(
                query: &ofi_provider::info::InfoQuery<'_>
            ) -> ofi_provider::error::Result<ofi_provider::info::InfoChain>;
            fn offers()
                -> ofi_provider::error::Result<Vec<ofi_provider::info::ProviderOffer>>;
            fn segments() -> ofi_provider::buf::SegmentLimit;
            fn region_segments() -> usize;
            fn address(
                info: ofi_provider::info::InfoRef<'_>
            ) -> ofi_provider::error::Result<ofi_provider::addr::Addr>;
        }
    };
}
pub(crate) use forward_attributes;

/// Implements [`LinkProvider`](crate::objects::LinkProvider) for a wrapper without settings of its
/// own. `$carrier` returns the link below a link.
macro_rules! forward_provider {
    ($below:ident, $carrier:expr) => {
        $crate::forward::forward_attributes! { $below }

        $crate::forward::forward! { $below:
            fn own_secret(
                key: &[u8]
            ) -> ofi_provider::error::Result<$crate::secret::PskConfig>;
        }

        fn open() -> ofi_provider::error::Result<Self> {
            $below::open().map(Self::new)
        }

        fn open_passive() -> ofi_provider::error::Result<Self> {
            $below::open_passive().map(Self::new)
        }

        fn open_with(secret: &$crate::secret::PskConfig) -> ofi_provider::error::Result<Self> {
            $below::open_with(secret).map(Self::new)
        }

        fn open_passive_with(
            secret: &$crate::secret::PskConfig,
        ) -> ofi_provider::error::Result<Self> {
            $below::open_passive_with(secret).map(Self::new)
        }

        fn is_for(link: &Self::Link, own: Option<&$crate::secret::PskConfig>) -> bool {
            $below::is_for($carrier(link), own)
        }
    };
}
pub(crate) use forward_provider;

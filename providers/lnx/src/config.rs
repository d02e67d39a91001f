//! The provider's run-time parameters (fi_lnx(7)).
use crate::LNX;
use crate::links::{LinkSpec, links};
use ofi_provider::param;
use std::sync::OnceLock;

/// Settings from the environment, read once.
#[derive(Debug)]
pub(crate) struct LnxConfig {
    /// Links, or the reason for having none.
    pub(crate) links: Result<Vec<LinkSpec>, String>,
    /// Peers of this host are also reached over the network.
    pub(crate) no_local: bool,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static LnxConfig {
    static CONFIG: OnceLock<LnxConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let text = param::string(
            &LNX,
            c"prov_links",
            c"providers that make one endpoint together, the one for peers of this host first, as in shm+tcp, \
              shm+tcp:eth0 or shm+cxi:cxi0|shm+cxi:cxi1 (none: the provider offers nothing)",
        );
        let links = match &text {
            Some(text) => links(text).map_err(|why| format!("FI_LNX_PROV_LINKS={text}: {why}")),
            None => Err("FI_LNX_PROV_LINKS is not set: it names the providers to link, as in \
                         shm+tcp"
                .to_owned()),
        };
        if let (Some(_), Err(why)) = (&text, &links) {
            ofi_provider::log!(&LNX, WARN, CORE, "{why}");
        }
        let no_local = param::boolean(
            &LNX,
            c"disable_shm",
            c"talk to peers of this host over the network (no)",
        );
        LnxConfig { links, no_local: no_local.unwrap_or(false) }
    })
}

//! Passive endpoints: listening for connections.
use crate::cm::{DATA_MAX, pack, unpack_request};
use crate::engine::process_all_events;
use crate::provider::VERBS;
use crate::sys::{Channel, CmEvent, CmId, CmKind};
use core::ffi::c_int;
use ofi_provider::addr::Addr;
use ofi_provider::api::{ConnReqReporter, PassiveEp, Reject};
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Lock;
use ofi_provider::progress::{Activity, Progress};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Default backlog of connection requests.
const BACKLOG: c_int = 1024;

/// A connection request between FI_CONNREQ and its answer.
#[derive(Debug)]
pub(crate) struct VerbsCaller {
    pub(crate) id: CmId,
}

impl Reject for VerbsCaller {
    fn reject(self, param: &[u8]) -> Result {
        self.id.reject(&pack(param))
    }
}

/// A listening endpoint.
#[derive(Debug)]
pub(crate) struct VerbsPep {
    shared: Arc<PepShared>,
}

#[derive(Debug)]
struct PepShared {
    channel: Arc<Channel>,
    state: Lock<PepState>,
    activity: Activity,
}

#[derive(Debug)]
struct PepState {
    /// Identifier bound to the address, also used by the requests' infos.
    id: Option<CmId>,
    backlog: c_int,
    conn_req_reporter: ConnReqReporter,
    local: Addr,
}

impl VerbsPep {
    /// A passive endpoint for this address.
    pub(crate) fn new(info: InfoBuf, local: &Addr) -> Result<Self> {
        let mut state = PepState {
            id: None,
            backlog: BACKLOG,
            conn_req_reporter: ConnReqReporter::new(info),
            local: local.clone(),
        };
        let channel = Channel::new()?;
        if local.is_ib() {
            // fi_getinfo(3) could not know whether the kernel takes it.
            state.bind(&channel)?;
        }
        let shared = PepShared { channel, state: Lock::new(state), activity: Activity::default() };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl PepState {
    /// Binds the address, so it can be reported.
    fn bind(&mut self, channel: &Arc<Channel>) -> Result<&CmId> {
        if self.id.is_none() {
            let id = CmId::new(channel, 0, &self.local)?;
            // An active endpoint may be opened with this address instead.
            id.share_port()?;
            id.bind(&self.local)?;
            self.local = id.local().unwrap_or(self.local.clone());
            self.id = Some(id);
        }
        self.id.as_ref().ok_or(Error::OPBADSTATE)
    }
}

impl PassiveEp for VerbsPep {
    type Request = VerbsCaller;

    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result {
        let mut state = self.shared.state.lock();
        state.conn_req_reporter.check_silent()?;
        let backlog = state.backlog;
        state.bind(&self.shared.channel)?.listen(backlog)?;
        state.conn_req_reporter.listen(eq, fid);
        Ok(())
    }

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.shared.clone()
    }

    fn getname(&self) -> Result<Vec<u8>> {
        Ok(self.shared.state.lock().local.to_bytes())
    }

    fn setname(&self, name: &[u8]) -> Result {
        let local = Addr::from_bytes(name)?;
        let mut state = self.shared.state.lock();
        state.conn_req_reporter.check_silent()?;
        let before = (state.id.take(), state.local.clone());
        state.local = local;
        if let Err(error) = state.bind(&self.shared.channel) {
            (state.id, state.local) = before;
            return Err(error);
        }
        Ok(())
    }

    fn set_backlog(&self, backlog: c_int) -> Result {
        let mut state = self.shared.state.lock();
        state.conn_req_reporter.check_silent()?;
        state.backlog = backlog;
        Ok(())
    }

    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn close(&self) {
        let mut state = self.shared.state.lock();
        state.id = None;
        state.conn_req_reporter.close();
    }
}

impl Progress for PepShared {
    fn progress(&self) {
        self.activity.another();
        let state = self.state.lock();
        let events: Vec<_> = std::iter::from_fn(|| self.channel.next()).collect();
        if events.is_empty() {
            return;
        }
        // Events of connections preceding one of these.
        process_all_events();
        for event in events {
            if let Err(error) = state.announce(event) {
                ofi_provider::log!(&VERBS, WARN, EP_CTRL, "dropping a connection request: {error}");
            }
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl PepState {
    /// Reports a connection request to the application.
    fn announce(&self, event: CmEvent) -> Result {
        let CmEvent { kind: CmKind::Request, request: Some(id), data, .. } = event else {
            return Ok(());
        };
        let (local, peer) = (id.local(), id.peer());
        let data = unpack_request(local.as_ref(), &data);
        let device = id.device();
        let [from, to] = [&local, &peer].map(|end| end.as_ref().map(Addr::to_bytes));
        self.conn_req_reporter.announce(
            VerbsCaller { id },
            [from.as_deref(), to.as_deref()],
            data,
            |info| device.map_or(Ok(()), |device| info.set_domain_name(device.name())),
        )?;
        Ok(())
    }
}

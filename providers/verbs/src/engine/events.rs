//! Events of a domain's connections and its device, handled by a thread of the domain independently
//! of the application.
use super::ep::{QpState, VerbsEndpoint};
use super::state::{VerbsEngine, VerbsState, engines};
use crate::provider::VERBS;
use crate::sys::{DeviceEvent, VerbsDevice};
use ofi_provider::progress::Progress;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Wait for the last messages of a connection ended by the peer: the event takes another path and
/// may overtake them.
const LINGER: Duration = Duration::from_millis(5);

/// Progress of a domain's connections by a thread. Connections are established, and posted requests
/// are flushed when the peer disconnects, independently of the application's waits.
#[derive(Debug)]
pub(crate) struct Connections(pub(crate) Arc<VerbsEngine>);

impl Progress for Connections {
    fn progress(&self) {
        while let Some(event) = self.0.device.next_event() {
            handle_device_event(self.0.device, event);
        }
        self.0.process_events();
    }

    fn wait_fd(&self) -> RawFd {
        self.0.channel.fd()
    }

    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [Some(self.0.device.events_fd()), None]
    }

    /// Always 0: no call of the application makes this progress.
    fn activity(&self) -> u64 {
        0
    }
}

/// Handles the events of all connections of this process: those preceding a request to a listener
/// are handled before it.
pub(crate) fn process_all_events() {
    let engines: Vec<_> = engines().iter().filter_map(Weak::upgrade).collect();
    engines.iter().for_each(VerbsEngine::process_events);
}

/// Handles an event of a device, for all engines with the device open.
fn handle_device_event(device: VerbsDevice, event: DeviceEvent) {
    let name = device.name().to_string_lossy();
    let say = |what: &str| ofi_provider::log!(&VERBS, WARN, EP_CTRL, "{name}: {what}");
    match event {
        DeviceEvent::PortDown(port) => say(&format!("port {port} is down")),
        DeviceEvent::PortUp(port) => {
            ofi_provider::log!(&VERBS, INFO, EP_CTRL, "{name}: port {port} is up");
        }
        DeviceEvent::QueueFailed => say("a completion queue lost completions"),
        DeviceEvent::PairFailed(pair) => say(&format!("queue pair {pair} failed")),
        DeviceEvent::Failed => say("the device does not work any more; its transfers fail"),
        DeviceEvent::FirstMessage(_) | DeviceEvent::Other => {}
    }
    let engines: Vec<_> = engines().iter().filter_map(Weak::upgrade).collect();
    for engine in engines.iter().filter(|engine| engine.device == device) {
        engine.lock().handle_device_event(event);
    }
}

impl VerbsEngine {
    /// Takes in the events of the domain's connections.
    pub(super) fn process_events(self: &Arc<Self>) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        while let Some(event) = self.channel.next() {
            ended.extend(state.handle_event(event, self));
        }
        let calls = !state.calls.is_empty();
        drop(state);
        if calls {
            self.call();
        }
        if ended.is_empty() {
            return;
        }
        std::thread::sleep(LINGER);
        let mut state = self.lock();
        ended.into_iter().for_each(|at| state.end(at));
    }
}

impl VerbsState {
    /// Takes in an event of the device.
    fn handle_device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::FirstMessage(pair) => {
                let of = |ep: &VerbsEndpoint| ep.qp().is_ok_and(|qp| qp.number() == pair);
                if let Some((_, VerbsEndpoint { conn: QpState::Accepted, id: Some(id), .. })) =
                    self.eps.iter().find(|(_, ep)| of(ep))
                {
                    // A failure means that the handshake came to its end before.
                    let _ = id.message_came();
                }
            }
            DeviceEvent::Failed => {
                // Takes the last completions: the device reports none any more.
                self.poll();
                self.eps.iter_mut().for_each(|(_, ep)| ep.device_failed());
            }
            _ => {}
        }
    }
}

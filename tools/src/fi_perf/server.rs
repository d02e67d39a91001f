//! The end waiting for a client.
use crate::control::Control;
use crate::end::{Event, Progress, Session, find_info};
use crate::fabric::Info;
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::options::{Op, Options, Parameters, agree};
use crate::usage::{CallCounter, describe};
use crate::wire::{Decoder, Kind, Offer, Start, decode_parameters};
use crate::worker::Step;
use ofi::abi::{FI_CONNECTED, FI_CONNREQ};
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time limit of a client's parameters.
const PARAMETERS_TIMEOUT: Duration = Duration::from_secs(10);

fn parameters_timeout(options: &Options) -> Duration {
    PARAMETERS_TIMEOUT.min(Duration::from_secs_f64(options.timeout))
}

/// Serves clients, one after the other.
pub(crate) fn serve(options: &Options) -> Outcomes {
    let any = options.listen.as_deref().unwrap_or("::");
    let step = format!("control port {}", options.port);
    let listener = match TcpListener::bind((any, options.port)) {
        Err(_) if options.listen.is_none() => TcpListener::bind(("0.0.0.0", options.port)),
        bound => bound,
    };
    let listener = listener.during(&step)?;
    if options.port == 0 {
        println!("port {}", listener.local_addr().during(&step)?.port());
    }
    loop {
        let (socket, from) = listener.accept().during(&step)?;
        let local = socket.local_addr().ok().map(|address| address.ip().to_canonical());
        let outcome = socket
            .set_nodelay(true)
            .during(&step)
            .and_then(|()| Control::new(socket.into(), parameters_timeout(options)));
        let from = from.ip().to_canonical();
        let outcome = match outcome {
            Ok(control) => Server::serve(control, options, local),
            // Not a client: --once waits for the next one.
            Err(failure) => {
                eprintln!("fi_perf: {from}: {failure}");
                continue;
            }
        };
        if options.once {
            return outcome;
        }
        if let Err(failure) = outcome {
            eprintln!("fi_perf: {from}: {failure}");
        }
    }
}

/// Serves the client at the standard input.
pub(crate) fn serve_inherited(options: &Options) -> Outcomes {
    use std::os::fd::AsFd as _;
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().during("socket")?;
    let control = Control::new(socket, parameters_timeout(options))?;
    Server::serve(control, options, Some(IpAddr::from([127, 0, 0, 1])))
}

/// One client.
struct Server<'a> {
    control: Control,
    options: &'a Options,
    parameters: Parameters,
    calls: CallCounter,
    local: Option<IpAddr>,
}

impl<'a> Server<'a> {
    fn serve(mut control: Control, options: &'a Options, local: Option<IpAddr>) -> Outcomes {
        let (parameters, calls) = Self::agree(&mut control, options)?;
        control.set_timeout(Duration::from_secs_f64(options.timeout));
        let mut server = Server { control, options, parameters, calls, local };
        let outcome = server.serve_operations();
        if let Err(failure) = &outcome {
            if !failure.0.starts_with("the other end") {
                server.control.send_failure(failure);
            }
        }
        outcome
    }

    fn agree(control: &mut Control, options: &Options) -> Outcomes<(Parameters, CallCounter)> {
        let payload = control.receive(Kind::Parameters)?;
        let agreed = decode_parameters(&payload)
            .and_then(|pairs| agree(&options.parameters, &options.named, &pairs))
            .map_err(Failure);
        let parameters = match agreed {
            Ok(parameters) => parameters,
            Err(failure) => {
                control.send_failure(&failure);
                return Err(failure);
            }
        };
        let calls = CallCounter::new();
        control.send(Kind::Accepted, &describe(&calls).encode())?;
        Ok((parameters, calls))
    }

    /// Returns an operation requested by the client.
    fn decode_op(&self, payload: &[u8]) -> Outcomes<Op> {
        let word = Decoder(payload).text().map_err(Failure)?;
        let op = self.parameters.ops.iter().find(|op| op.word() == word).copied();
        op.ok_or_else(|| Failure(format!("the operation {word:?} was not agreed on")))
    }

    /// Serves all requests of the client.
    fn serve_operations(&mut self) -> Outcomes {
        let mut open: Option<(Op, Session)> = None;
        loop {
            let (kind, payload) = self.control.receive_any()?;
            match (kind, &mut open) {
                (Kind::Start, Some((op, session))) => {
                    let start = Start::decode(&payload).map_err(Failure)?;
                    let op = *op;
                    self.run(session, op, start)?;
                }
                (Kind::Operation | Kind::Bye, _) => {
                    if let Some((_, session)) = open.take() {
                        session.shut_down();
                    }
                    if kind == Kind::Bye {
                        return Ok(());
                    }
                    let op = self.decode_op(&payload)?;
                    open = Some((op, self.open(op)?));
                }
                _ => return fail(format!("{kind:?} came too early")),
            }
        }
    }

    /// Opens the endpoints of an operation.
    fn open(&mut self, op: Op) -> Outcomes<Session> {
        let (o, p) = (self.options, &self.parameters);
        let hints = Info::hints(p, op, p.provider.as_deref(), o.domain.as_deref())?;
        let info = find_info(&hints, o, self.local)?;
        let mut session = Session::new(p, o, op, &info)?;
        let mut offer = Offer {
            provider: info.provider(),
            provider_version: info.provider_version().into(),
            fabric: info.fabric(),
            domain: info.domain(),
            format: info.format().into(),
            address: Vec::new(),
            max_size: info.max_size(),
            max_atomic: u64::MAX,
        };
        if session.connects() {
            offer.address = session.fabric.listen(&info)?;
            self.control.send(Kind::Offer, &offer.encode())?;
            while !session.is_complete() {
                let request = session.wait_for_event(&mut self.control, FI_CONNREQ as u32)?;
                let Some(request) = request else {
                    return fail("a connection request without info");
                };
                session.open_endpoint(&request)?;
                session.last_endpoint()?.accept()?;
                session.wait_for_event(&mut self.control, FI_CONNECTED as u32)?;
            }
        } else {
            while !session.is_complete() {
                session.open_endpoint(&info)?;
            }
            let first = session.workers.first().and_then(|worker| worker.channels.first());
            let Some(first) = first else { return fail("no endpoint") };
            offer.address = first.endpoint.name()?;
            if op.is_atomic() {
                offer.max_atomic = session.workers[0].domain.max_atomic(op);
            }
            self.control.send(Kind::Offer, &offer.encode())?;
        }
        session.exchange_channels(&mut self.control)?;
        Ok(session)
    }

    /// Runs a step requested by the client.
    fn run(&mut self, session: &mut Session, op: Op, start: Start) -> Outcomes {
        let p = &self.parameters;
        let test = usize::try_from(start.test).ok().and_then(|number| p.tests.get(number)).copied();
        let Some(test) = test.filter(|test| {
            p.sizes_of(*test, op).contains(&start.size) && (1..=1 << 40).contains(&start.count)
        }) else {
            return fail("a measurement was not agreed on");
        };
        let step = Step::new(start, test, p, false);
        session.prepare(&step)?;
        let (control, limit) = (&mut self.control, Duration::from_secs_f64(self.options.timeout));
        let (outcome, ()) = session.run(&step, &self.calls, |progress: &Progress| {
            control.send(Kind::Ready, &[])?;
            let (mut counted, mut finished, mut ended) = (0, false, false);
            let mut since = Instant::now();
            while !(finished && ended) {
                match progress.wait(control, &mut counted, limit.saturating_sub(since.elapsed()))? {
                    Event::Finished => finished = true,
                    Event::Control => {
                        since = Instant::now();
                        match control.receive_any()?.0 {
                            Kind::End => {
                                ended = true;
                                // Datagrams may be lost, so their receiver never finishes.
                                progress.signals.stop.store(
                                    p.ep == crate::options::EpKind::Dgram,
                                    std::sync::atomic::Ordering::Relaxed,
                                );
                            }
                            Kind::Ready => {}
                            kind => return fail(format!("{kind:?} came during a measurement")),
                        }
                    }
                    Event::Nothing if since.elapsed() >= limit => {
                        return fail("the client is silent");
                    }
                    Event::Nothing => {}
                }
            }
            Ok(())
        })?;
        self.control.send(Kind::Outcome, &outcome.encode())
    }
}

//! The measuring end.
use crate::control::Control;
use crate::end::{Event, Progress, Session, find_info};
use crate::fabric::Info;
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::options::{EpKind, Inject, Op, Options, Test};
use crate::stats::Histogram;
use crate::usage::{CallCounter, Clock, describe};
use crate::wire::{Encoder, Host, Kind, Offer, Outcome, Start, encode_parameters};
use crate::worker::Step;
use ofi::abi::FI_CONNECTED;
use std::time::{Duration, Instant};

/// Endpoints of one operation, and the times of opening them.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) op: Op,
    pub(crate) offer: Offer,
    /// Nanoseconds from fi_getinfo to the last enabled endpoint.
    pub(crate) open_ns: u64,
    /// Nanoseconds of connecting all endpoints (type msg).
    pub(crate) connect_ns: Option<u64>,
    /// Nanoseconds of the first operation, with the provider's own connection.
    pub(crate) first_ns: u64,
}

/// Measured values of a size.
pub(crate) struct Row {
    pub(crate) op: Op,
    pub(crate) test: Test,
    pub(crate) size: u64,
    /// Operations of both ends.
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    pub(crate) latencies: Histogram,
    /// Nanoseconds of one unit of the latencies: half of a tick for half round trips.
    pub(crate) unit: f64,
    pub(crate) samples: Vec<u64>,
    pub(crate) client: Outcome,
    pub(crate) server: Outcome,
}

/// All results.
pub(crate) struct Report {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) setups: Vec<Setup>,
    pub(crate) rows: Vec<Row>,
    /// Sizes without a row, with the reason.
    pub(crate) skipped: Vec<(Test, Op, u64, String)>,
}

impl Row {
    fn new(op: Op, test: Test, size: u64) -> Self {
        Self {
            op,
            test,
            size,
            count: 0,
            seconds: 0.0,
            latencies: Histogram::default(),
            unit: 1.0,
            samples: Vec::new(),
            client: Outcome::default(),
            server: Outcome::default(),
        }
    }

    /// Returns true if latencies are halves of round trips.
    pub(crate) fn is_half(&self, bidir: bool) -> bool {
        self.test == Test::Latency && !self.op.is_one_sided() && !bidir
    }
}

/// Measures all tests over a control connection.
pub(crate) struct Client<'a> {
    control: Control,
    options: &'a Options,
    calls: CallCounter,
    clock: Clock,
    report: Report,
}

impl<'a> Client<'a> {
    /// Agrees on the parameters.
    pub(crate) fn new(mut control: Control, options: &'a Options) -> Outcomes<Self> {
        let calls = CallCounter::new();
        control.send(Kind::Parameters, &encode_parameters(&options.parameters.exchanged()))?;
        let client = describe(&calls);
        let server = Host::decode(&control.receive(Kind::Accepted)?).map_err(Failure)?;
        let report =
            Report { client, server, setups: Vec::new(), rows: Vec::new(), skipped: Vec::new() };
        Ok(Self { control, options, calls, clock: Clock::new(), report })
    }

    /// Runs all measurements.
    pub(crate) fn measure(mut self) -> Outcomes<Report> {
        for op in self.options.parameters.ops.clone() {
            if let Err(failure) = self.measure_op(op) {
                if !failure.0.starts_with("the other end: ") {
                    self.control.send_failure(&failure);
                }
                return Err(failure);
            }
        }
        self.control.send(Kind::Bye, &[])?;
        Ok(self.report)
    }

    /// Opens the endpoints of an operation and connects them.
    fn open(&mut self, op: Op) -> Outcomes<(Session, Setup, Info)> {
        let (o, p) = (self.options, &self.options.parameters);
        self.control.send(Kind::Operation, &Encoder::default().text(op.word()).0)?;
        let offer = Offer::decode(&self.control.receive(Kind::Offer)?).map_err(Failure)?;
        let start = Instant::now();
        let provider = p.provider.as_deref().unwrap_or(&offer.provider);
        let hints = Info::hints(p, op, Some(provider), o.domain.as_deref())?;
        hints.set_destination(offer.format as u32, &offer.address)?;
        let info = find_info(&hints, o, None)?;
        if info.provider() != offer.provider {
            return fail(format!(
                "the provider is {} at the server and {} at the client",
                offer.provider,
                info.provider()
            ));
        }
        let mut session = Session::new(p, o, op, &info)?;
        let mut connecting = Duration::ZERO;
        while !session.is_complete() {
            session.open_endpoint(&info)?;
            if session.connects() {
                let start = Instant::now();
                session.last_endpoint()?.connect(&offer.address)?;
                session.wait_for_event(&mut self.control, FI_CONNECTED as u32)?;
                connecting += start.elapsed();
            }
        }
        let open_ns = (start.elapsed() - connecting).as_nanos() as u64;
        session.exchange_channels(&mut self.control)?;
        let connect_ns = session.connects().then_some(connecting.as_nanos() as u64);
        Ok((session, Setup { op, offer, open_ns, connect_ns, first_ns: 0 }, info))
    }

    fn measure_op(&mut self, op: Op) -> Outcomes {
        let (mut session, mut setup, info) = self.open(op)?;
        let p = &self.options.parameters;
        let limit = setup.offer.max_size.min(info.max_size());
        let max_atomic = match session.workers.first() {
            Some(worker) if op.is_atomic() => {
                worker.domain.max_atomic(op).min(setup.offer.max_atomic)
            }
            _ => 0,
        };
        let refuse = |test: Test, size: u64| {
            let injects = p.inject == Inject::Yes;
            if op.is_atomic() && (size == 0 || size % 8 != 0) {
                Some("atomics need multiples of 8 bytes".to_owned())
            } else if op.is_atomic() && size / 8 > max_atomic {
                Some(format!("the provider's atomics have at most {} bytes", max_atomic * 8))
            } else if !op.is_atomic() && size > limit {
                Some(format!("the provider's messages have at most {limit} bytes"))
            } else if injects && size > info.inject_size() {
                Some(format!("the provider injects at most {} bytes", info.inject_size()))
            } else if test != Test::Latency && size == 0 && op.is_one_sided() {
                Some("transfers without data".to_owned())
            } else {
                None
            }
        };
        let mut first = true;
        for (number, test) in p.tests.iter().enumerate() {
            for size in p.sizes_of(*test, op) {
                if let Some(reason) = refuse(*test, size) {
                    self.report.skipped.push((*test, op, size, reason));
                    continue;
                }
                let mut start = Start { test: number as u64, size, count: 1 };
                if std::mem::take(&mut first) {
                    // Datagrams to a peer without a connection may be lost.
                    let (own, _) = self.run(&mut session, start)?;
                    setup.first_ns = own.elapsed_ns;
                }
                start.count = p.warmup;
                if p.warmup > 0 {
                    self.run(&mut session, start)?;
                }
                let mut row = Row::new(op, *test, size);
                match p.iterations {
                    Some(count) => {
                        start.count = count;
                        self.add(&mut session, start, &mut row)?;
                    }
                    None => self.measure_seconds(&mut session, start, &mut row)?,
                }
                self.report.rows.push(row);
            }
        }
        self.report.setups.push(setup);
        session.shut_down();
        Ok(())
    }

    /// Measures for the requested time, in parts: one may be too short, as others disturb it.
    fn measure_seconds(
        &mut self,
        session: &mut Session,
        mut start: Start,
        row: &mut Row,
    ) -> Outcomes {
        let wanted = self.options.parameters.seconds;
        start.count = 4;
        loop {
            let (own, _) = self.run(session, start)?;
            let elapsed = own.elapsed_ns as f64 / 1e9;
            if elapsed >= wanted / 20.0 || start.count >= 1 << 40 {
                start.count = scaled(start.count, wanted / 2.0, elapsed);
                break;
            }
            let next = scaled(start.count, wanted / 10.0, elapsed);
            start.count = next.clamp(2 * start.count, 64 * start.count);
        }
        let mut operations = 0;
        while row.seconds < wanted * 0.95 {
            self.add(session, start, row)?;
            operations += start.count;
            start.count = scaled(operations, wanted - row.seconds, row.seconds);
        }
        Ok(())
    }

    /// Runs a step and adds its results to a row.
    fn add(&mut self, session: &mut Session, start: Start, row: &mut Row) -> Outcomes {
        let (client, server) = self.run(session, start)?;
        let p = &self.options.parameters;
        let before = row.latencies.total();
        for worker in &mut session.workers {
            row.latencies.merge(&worker.measured.latencies);
            row.samples.append(&mut worker.measured.samples);
        }
        let total = start.count * session.total() as u64;
        row.count += match (p.ep, row.test) {
            (EpKind::Dgram, Test::Latency) => row.latencies.total() - before,
            (EpKind::Dgram, _) => server.received + client.received,
            _ => total * if p.bidir { 2 } else { 1 },
        };
        row.seconds += client.elapsed_ns as f64 / 1e9;
        row.unit = self.clock.nanoseconds(if row.is_half(p.bidir) { 0.5 } else { 1.0 });
        row.client.add(&client);
        row.server.add(&server);
        Ok(())
    }

    /// Runs one step at both ends.
    fn run(&mut self, session: &mut Session, start: Start) -> Outcomes<(Outcome, Outcome)> {
        let p = &self.options.parameters;
        let test = p.tests[start.test as usize];
        let step = Step::new(start, test, p, true);
        session.prepare(&step)?;
        self.control.send(Kind::Start, &start.encode())?;
        self.control.receive(Kind::Ready)?;
        let control = &mut self.control;
        let alive = Duration::from_secs_f64(self.options.timeout / 4.0);
        let (own, theirs) = session.run(&step, &self.calls, |progress: &Progress| {
            let mut counted = 0;
            loop {
                match progress.wait(control, &mut counted, alive)? {
                    Event::Finished => break,
                    Event::Nothing => control.send(Kind::Ready, &[])?,
                    Event::Control => control.check_idle()?,
                }
            }
            control.send(Kind::End, &[])?;
            Outcome::decode(&control.receive(Kind::Outcome)?).map_err(Failure)
        })?;
        if own.wrong + theirs.wrong > 0 {
            let text = format!(
                "wrong data: {} transfers at the client, {} at the server ({} of {} bytes)",
                own.wrong,
                theirs.wrong,
                session.shape.op.word(),
                start.size
            );
            return fail(text);
        }
        Ok((own, theirs))
    }
}

/// Returns the number of operations for a time, at the rate of others.
fn scaled(count: u64, wanted: f64, elapsed: f64) -> u64 {
    ((count as f64 * wanted / elapsed.max(1e-9)).ceil() as u64).clamp(1, 1 << 40)
}

/// Connects to a server's control port.
pub(crate) fn connect(options: &Options, host: &str) -> Outcomes<Control> {
    use std::net::{TcpStream, ToSocketAddrs};
    let step = format!("connection to {host} port {}", options.port);
    let addresses = (host, options.port).to_socket_addrs().during(&step)?;
    let limit = Duration::from_secs_f64(options.timeout.min(10.0));
    let mut last = fail(format!("{step}: no address"));
    for address in addresses {
        last = TcpStream::connect_timeout(&address, limit).during(&step);
        if last.is_ok() {
            break;
        }
    }
    let socket = last?;
    socket.set_nodelay(true).during(&step)?;
    Control::new(socket.into(), Duration::from_secs_f64(options.timeout))
}

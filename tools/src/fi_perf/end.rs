//! Common part of both ends: opening endpoints, and running a step on all threads.
use crate::control::Control;
use crate::device::Device;
use crate::fabric::{Domain, Endpoint, Fabric, Info, QueueNeeds};
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::memory::{Contexts, Memory};
use crate::options::{EpKind, Op, Options, Parameters};
use crate::usage::{CallCounter, between};
use crate::wire::{ChannelAddress, Kind, Outcome, decode_channels, encode_channels};
use crate::worker::{Channel, Shape, Signals, Step, Worker, thread_failed};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum size of the buffers of an end.
const MAX_MEMORY: u64 = 8 << 30;

/// Endpoints of one operation. Fields are closed in their order.
pub(crate) struct Session {
    pub(crate) workers: Vec<Worker>,
    pub(crate) fabric: Fabric,
    pub(crate) shape: Shape,
    /// Device with the buffers, if they are not the host's.
    device: Option<&'static Device>,
    endpoints: usize,
    threads: usize,
    connects: bool,
    timeout: Duration,
    stores_samples: bool,
}

/// Returns the first info of the hints. Without a source address, endpoints with IP addresses use
/// the address of the control connection, if a provider has it.
pub(crate) fn find_info(
    hints: &Info,
    options: &Options,
    control: Option<IpAddr>,
) -> Outcomes<Info> {
    if options.source.is_some() {
        return hints.find(options.source.as_deref());
    }
    let info = hints.find(None)?;
    if let Some(address) = control.filter(|_| info.is_ip() && options.domain.is_none()) {
        if let Ok(info) = hints.find(Some(&address.to_string())) {
            return Ok(info);
        }
    }
    Ok(info)
}

impl Session {
    pub(crate) fn new(
        parameters: &Parameters,
        options: &Options,
        op: Op,
        info: &Info,
    ) -> Outcomes<Self> {
        let mut shape = Shape::new(parameters, op);
        shape.set_receives(info.receive_queue(), info.consumes_receives());
        shape.inject_size = info.inject_size();
        let endpoints = parameters.threads * parameters.endpoints;
        if endpoints.saturating_mul(shape.memory_len() as u64) > MAX_MEMORY {
            return fail("the buffers of all transfers take more than 8 GiB");
        }
        let connects = parameters.ep == EpKind::Msg;
        Ok(Self {
            workers: Vec::new(),
            fabric: Fabric::open(info, connects)?,
            shape,
            device: parameters.device.map(Device::open).transpose()?,
            endpoints: parameters.endpoints as usize,
            threads: parameters.threads as usize,
            connects,
            timeout: Duration::from_secs_f64(options.timeout),
            stores_samples: options.samples.is_some(),
        })
    }

    pub(crate) fn connects(&self) -> bool {
        self.connects
    }
    pub(crate) fn total(&self) -> usize {
        self.endpoints * self.threads
    }
    fn opened(&self) -> usize {
        self.workers.iter().map(|worker| worker.channels.len()).sum()
    }
    pub(crate) fn is_complete(&self) -> bool {
        self.opened() == self.total()
    }

    /// Opens the next endpoint, with the domain of its thread if it is the first one in it.
    pub(crate) fn open_endpoint(&mut self, info: &Info) -> Outcomes {
        let (number, shape) = (self.opened(), self.shape);
        if number % self.endpoints == 0 {
            let contexts = Contexts::new(shape.contexts() * self.endpoints)?;
            let needs = QueueNeeds {
                entries: shape.contexts() * self.endpoints,
                blocks: shape.blocks(),
                detailed: shape.is_detailed(),
            };
            let (domain, queue) = Domain::open(&self.fabric, info, &needs)?;
            let worker =
                Worker::new(domain, queue, contexts, shape, self.timeout, self.stores_samples);
            self.workers.push(worker);
        }
        let Some(worker) = self.workers.last_mut() else { return fail("no thread") };
        let memory = match self.device {
            Some(device) => Memory::on(device, shape.memory_len())?,
            None => Memory::new(shape.memory_len())?,
        };
        let key = (number % self.endpoints) as u64 + 1;
        let endpoint = Endpoint::open(
            &self.fabric,
            &worker.domain,
            &worker.queue,
            info,
            memory,
            key,
            shape.op,
        )?;
        worker.channels.push(Channel::new(endpoint, &shape));
        worker.post_receives()
    }

    /// Returns the endpoint opened last.
    pub(crate) fn last_endpoint(&self) -> Outcomes<&Endpoint> {
        let last = self.workers.last().and_then(|worker| worker.channels.last());
        last.map(|channel| &channel.endpoint).ok_or_else(thread_failed)
    }

    /// Waits for a connection event of this kind. The peer may end the control connection.
    pub(crate) fn wait_for_event(
        &self,
        control: &mut Control,
        wanted: u32,
    ) -> Outcomes<Option<Info>> {
        let limit = Instant::now() + self.timeout;
        loop {
            match self.fabric.event()? {
                Some((event, info)) if event == wanted => return Ok(info),
                Some((event, _)) => return fail(format!("unexpected connection event {event}")),
                None => control.check_idle()?,
            }
            if Instant::now() > limit {
                return fail("the other end does not connect");
            }
        }
    }

    /// Exchanges the addresses and keys of all endpoints.
    pub(crate) fn exchange_channels(&mut self, control: &mut Control) -> Outcomes {
        let mut own = Vec::new();
        for worker in &self.workers {
            for channel in &worker.channels {
                let (base, key) = channel.endpoint.region(&worker.domain);
                let address = if self.connects { Vec::new() } else { channel.endpoint.name()? };
                own.push(ChannelAddress { address, base, key });
            }
        }
        control.send(Kind::Channels, &encode_channels(&own))?;
        let payload = control.receive(Kind::Channels)?;
        let theirs = decode_channels(&payload, self.total()).map_err(Failure)?;
        let mut theirs = theirs.iter();
        for worker in &mut self.workers {
            for channel in &mut worker.channels {
                let Some(peer) = theirs.next() else { return fail("no address") };
                if peer.address.is_empty() != self.connects {
                    return fail("the other end sent an address without a need, or none");
                }
                channel.endpoint.set_peer(&worker.domain, &peer.address, peer.base, peer.key)?;
            }
        }
        Ok(())
    }

    /// Ends the connections.
    pub(crate) fn shut_down(&self) {
        let channels = self.workers.iter().flat_map(|worker| &worker.channels);
        channels.filter(|_| self.connects).for_each(|channel| channel.endpoint.shut_down());
    }

    /// Prepares a step on all threads.
    pub(crate) fn prepare(&mut self, step: &Step) -> Outcomes {
        self.workers.iter_mut().try_for_each(|worker| worker.prepare(step))
    }

    /// Runs a prepared step on all threads, while `supervise` follows the control connection.
    /// Returns the results of this end and of `supervise`.
    pub(crate) fn run<T>(
        &mut self,
        step: &Step,
        calls: &CallCounter,
        supervise: impl FnOnce(&Progress) -> Outcomes<T>,
    ) -> Outcomes<(Outcome, T)> {
        let progress = Progress::new(self.workers.len())?;
        let before = calls.usage();
        let (answer, results) = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .workers
                .iter_mut()
                .map(|worker| {
                    let progress = &progress;
                    scope.spawn(move || {
                        let outcome =
                            worker.run(step, &progress.signals, || progress.finish_thread());
                        if outcome.is_err() {
                            progress.fail();
                        }
                        outcome
                    })
                })
                .collect();
            let answer = supervise(&progress);
            if answer.is_err() {
                progress.signals.abort.store(true, Ordering::Relaxed);
            }
            progress.signals.stop.store(true, Ordering::Relaxed);
            let join = |thread: std::thread::ScopedJoinHandle<'_, Outcomes>| {
                thread.join().unwrap_or_else(|_| Err(thread_failed()))
            };
            (answer, threads.into_iter().map(join).collect::<Vec<_>>())
        });
        let usage = between(before, calls.usage());
        // The reason of a failed thread says more than the end of the supervision by it.
        let failure =
            results.into_iter().filter_map(Result::err).find(|failure| failure.0 != "stopped");
        let answer = match (answer, failure) {
            (Ok(answer), None) => answer,
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) if !progress.has_failed.load(Ordering::Relaxed) => {
                return Err(error);
            }
            (_, Some(failure)) => return Err(failure),
        };
        let times =
            self.workers.iter().map(|worker| worker.measured.start.zip(worker.measured.end));
        let span = times.flatten().reduce(|(start, end), (s, e)| (start.min(s), end.max(e)));
        let mut outcome = Outcome { usage, ..Default::default() };
        outcome.elapsed_ns = span.map_or(0, |(start, end)| (end - start).as_nanos() as u64);
        for worker in &self.workers {
            outcome.sent += worker.measured.sent;
            outcome.received += worker.measured.received;
            outcome.wrong += worker.measured.wrong;
        }
        Ok((outcome, answer))
    }
}

/// State of the threads of a step.
pub(crate) struct Progress {
    pub(crate) signals: Signals,
    has_failed: AtomicBool,
    finished: OwnedFd,
    threads: usize,
}

/// Something to react to.
pub(crate) enum Event {
    /// All threads have finished.
    Finished,
    Control,
    Nothing,
}

impl Progress {
    fn new(threads: usize) -> Outcomes<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let finished = eventfd(0, flags).map_err(std::io::Error::from).during("eventfd")?;
        Ok(Self {
            signals: Signals::default(),
            has_failed: AtomicBool::new(false),
            finished,
            threads,
        })
    }
    fn finish_thread(&self) {
        let _ = rustix::io::write(&self.finished, &1u64.to_ne_bytes());
    }
    fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.finished, &1u64.to_ne_bytes());
    }

    /// Waits until all threads have finished, a frame arrives, or the time is over. `counted` is
    /// the number of threads known to have finished.
    pub(crate) fn wait(
        &self,
        control: &Control,
        counted: &mut u64,
        time: Duration,
    ) -> Outcomes<Event> {
        let mut fds = [
            PollFd::new(&self.finished, PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        let waits_for_threads = *counted < self.threads as u64;
        let (limit, fds) =
            (crate::control::timespec(time), &mut fds[usize::from(!waits_for_threads)..]);
        match poll(fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error)).during("poll"),
        }
        let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        let (control, threads) = (ready(fds.last()), waits_for_threads && ready(fds.first()));
        if threads {
            let mut bytes = [0; 8];
            if rustix::io::read(&self.finished, &mut bytes).is_ok() {
                *counted += u64::from_ne_bytes(bytes);
            }
            if self.has_failed.load(Ordering::Relaxed) {
                return fail("stopped");
            }
            if *counted >= self.threads as u64 {
                return Ok(Event::Finished);
            }
        }
        Ok(if control { Event::Control } else { Event::Nothing })
    }
}

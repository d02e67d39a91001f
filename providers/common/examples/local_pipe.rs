//! Benchmark of a pipe between two processes, each on a separate processor: `cargo run --release -p
//! ofi-provider --example local_pipe [latency|rate|stream]`, or with `steps COUNT` for an
//! instruction count by valgrind.
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::cma::{MemoryToken, PeerMemory};
use ofi_provider::error::Error;
use ofi_provider::shm_channel::ShmChannel;
use std::os::fd::AsFd;
use std::time::Instant;

fn pin(cpu: usize) {
    // SAFETY: an empty set is a valid one; the call reads it.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Runs `child` in another process on the second processor, `own` on the first.
fn both(ring: usize, child: impl FnOnce(&ShmChannel), own: impl FnOnce(&ShmChannel)) {
    let token = MemoryToken::new().unwrap();
    let (pipe, fd) = ShmChannel::create(ring).unwrap();
    // SAFETY: nothing else runs in this process.
    let (parent, pid) = (std::process::id(), unsafe { libc::fork() });
    if pid == 0 {
        pin(1);
        let other = ShmChannel::open(fd.as_fd()).unwrap();
        match PeerMemory::open(parent as i32, token.address(), token.value()) {
            Ok(memory) => other.set_peer_memory(memory),
            Err(error) => println!("no direct copies: {error}"),
        }
        other.set_polled(std::env::var_os("COLD").is_none());
        child(&other);
        // SAFETY: nothing is left to do.
        unsafe { libc::_exit(0) };
    }
    pin(0);
    pipe.set_polled(std::env::var_os("COLD").is_none());
    own(&pipe);
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

fn send_all(pipe: &ShmChannel, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match pipe.send(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Error::AGAIN) => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn recv_all(pipe: &ShmChannel, buf: &mut [u8]) {
    let mut done = 0;
    while done < buf.len() {
        match pipe.recv(&mut buf[done..]) {
            Ok(n) => done += n,
            Err(Error::AGAIN) => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The best of some runs, the best tenth and the median.
fn report(what: &str, unit: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    if unit != "ns" {
        figures.reverse();
    }
    let [best, tenth, half] = [0, figures.len() / 10, figures.len() / 2].map(|at| figures[at]);
    println!("{what:<44} best {best:7.2}, a tenth {tenth:7.2}, half {half:7.2} {unit}");
}

/// Number of runs of each measurement. They are short, so some run undisturbed on a busy machine.
const RUNS: usize = 1000;

fn latency(len: usize) {
    let times = if len > 4096 { 20 } else { 200 };
    both(
        64 << 10,
        |pipe| {
            let mut buf = vec![0; len];
            for _ in 0..RUNS * times {
                recv_all(pipe, &mut buf);
                send_all(pipe, &buf);
            }
        },
        |pipe| {
            let mut buf = vec![1; len];
            let runs = (0..RUNS).map(|_| {
                let start = Instant::now();
                for _ in 0..times {
                    send_all(pipe, &buf);
                    recv_all(pipe, &mut buf);
                }
                start.elapsed().as_nanos() as f64 / times as f64 / 2.0
            });
            report(&format!("one way, {len} B"), "ns", runs.collect());
        },
    );
}

fn rate(len: usize) {
    const TIMES: usize = 2_000;
    both(
        64 << 10,
        |pipe| {
            let mut buf = vec![0; 16384];
            for _ in 0..RUNS {
                let mut left = TIMES * len;
                while left > 0 {
                    match pipe.recv(&mut buf) {
                        Ok(n) => left -= n,
                        Err(Error::AGAIN) => std::hint::spin_loop(),
                        Err(error) => panic!("{error}"),
                    }
                }
                send_all(pipe, b"x");
            }
        },
        |pipe| {
            let message = vec![1; len];
            let runs = (0..RUNS).map(|_| {
                let start = Instant::now();
                (0..TIMES).for_each(|_| send_all(pipe, &message));
                recv_all(pipe, &mut [0]);
                TIMES as f64 / start.elapsed().as_nanos() as f64 * 1e3
            });
            report(&format!("messages of {len} B one after the other"), "M/s", runs.collect());
        },
    );
}

fn stream(len: usize, ring: usize, way: CopyMode) {
    let times = ((2 << 20) / len).max(1);
    both(
        ring,
        |pipe| {
            let mut buf = vec![1; len];
            for _ in 0..RUNS {
                for _ in 0..times {
                    let mut done = 0;
                    while done < len {
                        let mut list = ScatterList::default();
                        list.push_buf(&mut buf[done..]);
                        match pipe.recv_list(&mut list) {
                            Ok(n) => done += n,
                            Err(Error::AGAIN) => std::hint::spin_loop(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                send_all(pipe, b"x");
            }
        },
        |pipe| {
            let message = vec![2; len];
            if way == CopyMode::ZeroCopy {
                while !pipe.can_expose() {
                    std::hint::spin_loop();
                }
            }
            let runs = (0..RUNS).map(|_| {
                let start = Instant::now();
                for _ in 0..times {
                    let mut done = 0;
                    while done < len {
                        let mut list = GatherList::default();
                        list.push_bytes(&message[done..]);
                        match pipe.send_list(&list, way) {
                            Ok(n) => done += n,
                            Err(Error::AGAIN) => std::hint::spin_loop(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                recv_all(pipe, &mut [0]);
                let _ = pipe.zcopy_completed();
                (times * len) as f64 / start.elapsed().as_nanos() as f64
            });
            let how = if way == CopyMode::ZeroCopy { "zero copy" } else { "ring" };
            report(&format!("stream of {len} B, {how}, rings of {ring}"), "GB/s", runs.collect());
        },
    );
}

/// Alternately sends and receives `count` messages, for a tool counting instructions.
fn steps(count: usize) {
    let (here, fd) = ShmChannel::create(64 << 10).unwrap();
    let there = ShmChannel::open(fd.as_fd()).unwrap();
    there.set_polled(true);
    let (message, mut buf) = ([1; 80], [0; 8192]);
    for _ in 0..count {
        assert_eq!(here.send(std::hint::black_box(&message)), Ok(message.len()));
        assert_eq!(there.recv(std::hint::black_box(&mut buf)), Ok(message.len()));
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let only = words.next().unwrap_or_default();
    if only == "steps" {
        return steps(words.next().map_or(1000, |count| count.parse().expect("a number")));
    }
    let wanted = |what: &str| only.is_empty() || only == what;
    for len in [8, 64, 80, 512, 4096, 32768] {
        if wanted("latency") {
            latency(len);
        }
    }
    for len in [8, 64, 80, 512] {
        if wanted("rate") {
            rate(len);
        }
    }
    for len in [4096, 16384, 65536, 1 << 20] {
        if wanted("stream") {
            stream(len, 64 << 10, CopyMode::Copied);
            stream(len, 256 << 10, CopyMode::Copied);
            stream(len, 64 << 10, CopyMode::ZeroCopy);
        }
    }
    if wanted("stream") {
        stream(1 << 20, 4096, CopyMode::Copied);
    }
}

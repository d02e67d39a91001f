//! Pipe between processes of one host, with a hostile peer overwriting the shared memory between
//! local calls.
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::cma::{MemoryToken, PeerMemory};
use ofi_provider::error::{Error, Result};
use ofi_provider::shm_channel::ShmChannel;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

static TOKEN: LazyLock<MemoryToken> = LazyLock::new(|| MemoryToken::new().unwrap());

/// Bytes of the segment in front of its rings.
const WORDS: u64 = 3 * 4096;
/// Bytes of a ring.
const RING: usize = 4096;
/// Maximum bytes of a transfer, and the bytes behind its buffer.
const MOST: usize = 3 * RING;
const BEHIND: usize = 64;

/// Rest of the input; zeros after its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let (now, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        now.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// An answer of ours: no more than was asked for, and no other error than these.
fn check(result: Result<usize>, most: usize) -> usize {
    match result {
        Ok(n) => {
            assert!(n <= most);
            n
        }
        Err(error) => {
            assert!([Error::AGAIN, Error::PROTO, Error::CONNRESET].contains(&error), "{error:?}");
            0
        }
    }
}

fn own_memory() -> Option<PeerMemory> {
    PeerMemory::open(std::process::id() as i32, TOKEN.address(), TOKEN.value()).ok()
}

pub fn run(bytes: &[u8]) {
    let (maker, fd) = ShmChannel::create(RING).unwrap();
    let opener = ShmChannel::open(fd.as_fd()).unwrap();
    let memory = File::from(fd);
    let mut script = Script(bytes);
    // Ours and the hostile one, which has an honest end to begin with.
    let (end, other) = if script.number(1) % 2 == 0 { (maker, opener) } else { (opener, maker) };
    for end in [&end, &other] {
        if let Some(memory) = own_memory() {
            end.set_peer_memory(memory);
        }
    }
    let source = vec![5u8; MOST];
    let mut buf = vec![7u8; MOST + BEHIND];
    while !script.0.is_empty() {
        let what = script.number(1);
        let n = script.number(2) as usize % MOST;
        match what % 12 {
            0 => {
                check(end.send(&source[..n]), n);
            }
            1 | 2 => {
                let cut = n / 3;
                let mut list = GatherList::default();
                list.push_bytes(&source[..cut]);
                list.push_bytes(&source[cut..n]);
                check(
                    end.send_list(&list, [CopyMode::Copied, CopyMode::ZeroCopy][what as usize % 2]),
                    n,
                );
            }
            3 => {
                check(end.recv(&mut buf[..n]), n);
            }
            4 => {
                let (first, second) = buf[..n].split_at_mut(n / 3);
                let mut list = ScatterList::default();
                list.push_buf(first);
                list.push_buf(second);
                check(end.recv_list(&mut list), n);
            }
            5 => {
                let _ = (end.has_data(), end.has_space(), end.can_expose(), end.is_exposing());
                let _ = (end.peer_switched_at(), end.set_polled(n.is_multiple_of(2)));
                if let Ok(done) = end.zcopy_completed() {
                    assert!(done.high.wrapping_sub(done.low) < bytes.len() as u32);
                }
            }
            // The other end as it should be, which may meet what was written over.
            6 => {
                let _ = other.send(&source[..n]);
            }
            7 => {
                let _ = other.recv(&mut buf[..n]);
            }
            // A word anywhere in what both say.
            8 => {
                let at = (n as u64 * 8) % WORDS;
                let word = script.number(8);
                memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
            }
            // A cell, near those that are used; its length and kind.
            9 => {
                let at = 128 + (n as u64 / 256 % 2) * 4352 + 256 + (n as u64 % 32) * 128;
                let number = script.number(1) + 1;
                let word = number << 32 | script.number(2);
                memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
            }
            // Content of an exposed buffer's description: memory, valid or not.
            10 => {
                let at = 128 + (n as u64 / 256 % 2) * 4352 + 256 + (n as u64 % 32) * 128;
                let shift = script.number(1) % 64;
                let address = source.as_ptr() as u64 ^ script.number(2) << shift;
                let len = script.number(2) << (script.number(1) % 64);
                memory.write_all_at(&address.to_ne_bytes(), at + 8).unwrap();
                memory.write_all_at(&len.to_ne_bytes(), at + 16).unwrap();
            }
            _ => {
                let at = 128 + (n as u64 / 256 % 2) * 4352 + (n as u64 % 32) * 8;
                let word = script.number(4) << 32 | script.number(4);
                memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
            }
        }
        assert!(buf[MOST..].iter().all(|byte| *byte == 7));
    }
}

//! Published statistics of a process: any content is read, analysed and formatted as bounded text
//! without control characters.
use ofi_stats::bounds::ProcessBounds;
use ofi_stats::doctor::examine;
use ofi_stats::layout::{MAGIC, VERSION, words_with};
use ofi_stats::read::{StatsProcess, SystemStats, read};
use ofi_stats::show::{address, link, state};

pub fn run(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut memory = bytes.to_vec();
    if choice & 1 != 0 {
        // As far as the head goes, it is the library's.
        memory.resize(words_with(8) * 8, 0);
        memory[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        memory[8..16].copy_from_slice(&VERSION.to_ne_bytes());
        memory[24..32].copy_from_slice(&8_u64.to_ne_bytes());
        memory[32..40].copy_from_slice(&u64::from(choice >> 4).min(8).to_ne_bytes());
        memory[40..48].copy_from_slice(&u64::from(choice >> 5).to_ne_bytes());
    }
    let Ok(page) = read(&memory[..], &mut ProcessBounds::alone()) else { return };
    let is_printable = |text: &str| text.len() < 4096 && !text.chars().any(char::is_control);
    assert!(is_printable(&page.provider()));
    for peer in page.peers() {
        assert!(
            is_printable(&address(&peer.address))
                && is_printable(state(peer))
                && is_printable(link(peer))
        );
    }
    let process = StatsProcess::new(1, SystemStats::default(), vec![page]);
    let mut other = process.clone();
    other.pid = 2;
    let processes = [process, other];
    let now = u64::from_ne_bytes([choice; 8]);
    for finding in examine(&processes, &processes, now).findings {
        assert!(is_printable(&finding.cause) && is_printable(&finding.seen), "{finding:?}");
    }
}

//! Traces: any content is converted to valid text without control characters, in two files with an
//! offset.
use ofi_hosts::trace::convert::TraceConverter;
use ofi_hosts::trace::order::TraceReader;

pub fn run(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let cut = usize::from(choice) * bytes.len() / 255;
    let (one, other) = bytes.split_at(cut);
    let mut json = Vec::new();
    let reader = TraceReader::new([(one, 0), (other, i64::from(choice as i8) << 56)]);
    let labels = ["a\"".to_string(), "\u{1b}".to_string()];
    let summary = TraceConverter::new(&mut json).convert(reader, &labels).expect("memory");
    let text = String::from_utf8(json).expect("text");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
    assert!(summary.joined <= summary.matches && summary.matches <= summary.lines.events);
}

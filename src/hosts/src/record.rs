//! JSON form of the records of the statistics page: an object with a member for each field with a
//! value other than 0.
use ofi_stats::layout::{FactRecord, words_text};
use ofi_stats::show::json;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Fields with a text.
const TEXTS: [&str; 3] = ["address", "lost_peer", "provider"];

/// Returns a record as JSON.
pub(crate) fn record_json<R: FactRecord>(record: &R) -> String {
    let mut words = vec![0; R::WORDS];
    record.put_words(&mut words);
    let (mut text, mut rest) = (String::from("{"), &words[..]);
    for (name, count) in R::FIELDS {
        let (field, behind) = rest.split_at(*count);
        rest = behind;
        let Some(last) = field.iter().rposition(|word| *word != 0) else { continue };
        if text.len() > 1 {
            text.push(',');
        }
        let _ = write!(text, "\"{name}\":");
        if TEXTS.contains(name) {
            text += &json(&words_text(field));
        } else if *count == 1 {
            text += &field[0].to_string();
        } else {
            let all: Vec<_> = field[..=last].iter().map(u64::to_string).collect();
            let _ = write!(text, "[{}]", all.join(","));
        }
    }
    text.push('}');
    text
}

/// Returns the record of a JSON object. Missing members are 0, and unknown ones are ignored.
pub(crate) fn record_of<R: FactRecord>(members: &Map<String, Value>) -> Result<R, String> {
    let mut words = vec![0; R::WORDS];
    let mut rest = &mut words[..];
    for (name, count) in R::FIELDS {
        let (field, behind) = rest.split_at_mut(*count);
        rest = behind;
        let Some(value) = members.get(*name) else { continue };
        fill(field, value, TEXTS.contains(name)).ok_or_else(|| format!("{name} cannot be"))?;
    }
    Ok(R::of_words(&words))
}

/// Writes a value to the words of a field.
fn fill(field: &mut [u64], value: &Value, is_text: bool) -> Option<()> {
    match value {
        Value::String(text) if is_text && text.len() <= 8 * field.len() => {
            for (word, part) in field.iter_mut().zip(text.as_bytes().chunks(8)) {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                *word = u64::from_ne_bytes(bytes);
            }
        }
        Value::Number(number) if !is_text && field.len() == 1 => field[0] = number.as_u64()?,
        Value::Array(numbers) if !is_text && field.len() > 1 && numbers.len() <= field.len() => {
            for (word, number) in field.iter_mut().zip(numbers) {
                *word = number.as_u64()?;
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_stats::layout::{ANY, EndpointStats, PeerStats, PendingOpStats, text_words};

    fn parsed<R: FactRecord>(text: &str) -> Result<R, String> {
        record_of(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap())
    }

    #[test]
    fn record_survives_conversion_to_json_and_back() {
        let mut endpoint = EndpointStats { serial: 3, iterations: u64::MAX, ..Default::default() };
        endpoint.address = text_words("[::1]:5");
        endpoint.receives[1] = PendingOpStats { kind: 2, tag: 5, ignore_or_len: 0, source: ANY };
        let text = record_json(&endpoint);
        let expected = "{\"serial\":3,\"iterations\":18446744073709551615,\
             \"receives\":[0,0,0,0,2,5,0,18446744073709551615],\"address\":\"[::1]:5\"}";
        assert_eq!(text, expected);
        assert_eq!(parsed(&text), Ok(endpoint));
        assert_eq!(parsed("{}"), Ok(PeerStats::default()));
    }

    #[test]
    fn malformed_fields_are_rejected() {
        for text in [
            "{\"serial\":-1}",
            "{\"serial\":1.5}",
            "{\"serial\":\"1\"}",
            "{\"serial\":[1]}",
            "{\"address\":5}",
            "{\"address\":\"01234567890123456789012345678901234567890123456789012345678901234\"}",
            "{\"posted\":[1,2,3]}",
            "{\"posted\":[1,null]}",
            "{\"posted\":1}",
        ] {
            assert!(parsed::<EndpointStats>(text).is_err(), "{text}");
        }
    }
}

//! Lists of message sizes: `1,64,4K,1M`, ranges `1-1M`, `all`.

/// Maximum size of a message.
pub(crate) const MAX_SIZE: u64 = 1 << 30;
/// Maximum number of sizes in a list.
pub(crate) const MAX_SIZES: usize = 256;
/// Range of the word `all`.
const ALL: (u64, u64) = (1, 4 << 20);

/// Parses a number with an optional suffix of powers of 1024: `4K`, `4KiB`, `1m`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kib" => 10,
        "m" | "mi" | "mib" => 20,
        "g" | "gi" | "gib" => 30,
        _ => return Err(format!("{text:?} is not a size")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size"))?;
    let size = number.checked_mul(1 << shift).filter(|size| *size <= MAX_SIZE);
    size.ok_or_else(|| format!("{text} is more than the maximum size, 1G"))
}

/// Adds the sizes of a range: `first`, doubled up to `last`, or with a step of `+N` or `*N`.
fn add_range(text: &str, sizes: &mut Vec<u64>) -> Result<(), String> {
    let (first, rest) = text.split_once('-').ok_or_else(|| format!("{text:?} is not a range"))?;
    let split = rest.find(['+', '*']).unwrap_or(rest.len());
    let (last, step) = rest.split_at(split);
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first > last {
        return Err(format!("the range {text} ends before it begins"));
    }
    let by = if step.is_empty() { 2 } else { parse_size(&step[1..])? };
    let adds = step.starts_with('+');
    if by < if adds { 1 } else { 2 } {
        return Err(format!("the range {text} has no end"));
    }
    let mut size = first;
    while size <= last {
        sizes.push(size);
        if sizes.len() > MAX_SIZES {
            return Err(format!("more than {MAX_SIZES} sizes"));
        }
        size = match (adds, size) {
            (true, _) => size + by,
            (false, 0) => 1,
            (false, _) => size * by,
        };
    }
    if sizes.last() != Some(&last) && step.is_empty() {
        sizes.push(last);
    }
    Ok(())
}

/// Parses a list of sizes and ranges.
pub(crate) fn parse_sizes(text: &str) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.trim() {
            "all" => add_range(&format!("{}-{}", ALL.0, ALL.1), &mut sizes)?,
            range if range.contains('-') => add_range(range, &mut sizes)?,
            size => sizes.push(parse_size(size)?),
        }
        if sizes.len() > MAX_SIZES {
            return Err(format!("more than {MAX_SIZES} sizes"));
        }
    }
    Ok(sizes)
}

/// Returns a size in the shortest form accepted by [`parse_size`].
pub(crate) fn size_text(size: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| size > 0 && size % (1 << shift) == 0);
    unit.map_or(size.to_string(), |(shift, suffix)| format!("{}{suffix}", size >> shift))
}

/// Returns a list of sizes as text.
pub(crate) fn sizes_text(sizes: &[u64]) -> String {
    sizes.iter().map(|size| size_text(*size)).collect::<Vec<_>>().join(",")
}

//! Counter file of the hook `monitor`, read by a sampler (fi_hook(7), fi_mon_sampler(1)).
//! Third-party libraries and samplers use the same layout.
//!
//! It has a row for each call and kind of completion: the number of calls by size, then the number
//! of bytes by size. A byte of flags follows the rows. A sampler sets [`ASKED`], and the hook
//! clears it when the rows contain the counts since the last time. [`ENDED`] marks the last ones.

/// Counted calls and completions, in the order of the rows.
pub const ROWS: [&str; 42] = [
    "recv",
    "recvv",
    "recvmsg",
    "trecv",
    "trecvv",
    "trecvmsg",
    "send",
    "sendv",
    "sendmsg",
    "inject",
    "senddata",
    "injectdata",
    "tsend",
    "tsendv",
    "tsendmsg",
    "tinject",
    "tsenddata",
    "tinjectdata",
    "read",
    "readv",
    "readmsg",
    "write",
    "writev",
    "writemsg",
    "inject_write",
    "writedata",
    "inject_writedata",
    "mr_reg",
    "mr_regv",
    "mr_regattr",
    "cq_read",
    "cq_readfrom",
    "cq_readerr",
    "cq_sread",
    "cq_sreadfrom",
    "cq_ctx",
    "cq_msg_tx",
    "cq_msg_rx",
    "cq_data_tx",
    "cq_data_rx",
    "cq_tagged_tx",
    "cq_tagged_rx",
];

/// Size classes: their names in samplers, and the maximum number of bytes of each.
pub const CLASSES: [(&str, u64); 9] = [
    ("0_64", 64),
    ("64_512", 512),
    ("512_1K", 1 << 10),
    ("1K_4K", 4 << 10),
    ("4K_64K", 64 << 10),
    ("64K_256K", 256 << 10),
    ("256K_1M", 1 << 20),
    ("1M_4M", 4 << 20),
    ("4M_UP", u64::MAX),
];

/// Numbers of 8 bytes in a row: as many counts as there are classes, and then as many sums.
pub const ROW_NUMBERS: usize = 2 * CLASSES.len();
/// Numbers in the file.
pub const NUMBERS: usize = ROWS.len() * ROW_NUMBERS;
/// Offset of the flags.
pub const FLAGS_AT: usize = NUMBERS * 8;
/// The length of the file.
pub const FILE_LEN: usize = FLAGS_AT + 8;

/// Request of a sampler for the counts since the last time.
pub const ASKED: u8 = 1;
/// The watched fabric is closed.
pub const ENDED: u8 = 2;

/// The class of an operation on so many bytes.
pub fn class_of(bytes: u64) -> usize {
    CLASSES.iter().position(|(_, most)| bytes <= *most).unwrap_or(CLASSES.len() - 1)
}

/// The row of this name.
pub fn row_of(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| *row == name)
}

/// The places of a row's count and sum for a class, among all numbers.
pub fn cell_indices(row: usize, class: usize) -> [usize; 2] {
    let start = row * ROW_NUMBERS + class;
    [start, start + CLASSES.len()]
}

/// Returns the header line of a CSV table.
pub fn csv_head() -> String {
    let columns = ROWS.iter().flat_map(|row| {
        CLASSES.iter().map(move |(class, _)| format!("mon_{row}_{class}_c,mon_{row}_{class}_s"))
    });
    columns.collect::<Vec<_>>().join(",") + "\n"
}

/// A line of the table, of the numbers of a file: of each class the count and then the sum.
pub fn csv_line(numbers: &[u64; NUMBERS]) -> String {
    let mut cells = Vec::with_capacity(NUMBERS);
    for row in 0..ROWS.len() {
        for class in 0..CLASSES.len() {
            cells.extend(cell_indices(row, class).map(|cell| numbers[cell].to_string()));
        }
    }
    cells.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_those_of_others() {
        assert_eq!((FLAGS_AT, FILE_LEN), (6048, 6056));
        assert_eq!(row_of("cq_ctx"), Some(35));
    }

    #[test]
    fn size_class_ends_with_the_size_in_its_name() {
        let sizes = [0, 64, 65, 512, 513, 4096, 65536, 65537, 1 << 20, 4 << 20, u64::MAX];
        assert_eq!(sizes.map(class_of), [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_line_has_a_cell_for_each_column_the_count_before_the_sum() {
        let mut numbers = [0; NUMBERS];
        let [count, sum] = cell_indices(1, 2);
        (numbers[count], numbers[sum]) = (7, 700);
        let (head, line) = (csv_head(), csv_line(&numbers));
        let cells: Vec<_> = head.trim_end().split(',').zip(line.trim_end().split(',')).collect();
        assert_eq!(cells.len(), 756);
        let filled: Vec<_> = cells.into_iter().filter(|(_, cell)| *cell != "0").collect();
        assert_eq!(filled, [("mon_recvv_512_1K_c", "7"), ("mon_recvv_512_1K_s", "700")]);
    }
}

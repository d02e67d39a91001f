//! Paths of collectives by size, for `fi_info --protocols` (fi_info(1)).
use super::plan::{AT_ONCE, SHORT};
use crate::info::TransferPath;

/// Returns the algorithms of collectives, with the sizes in bytes of a member's vector or block.
pub fn coll_paths() -> Vec<TransferPath> {
    let path = |transfers, path, text: &str| TransferPath::new(transfers, path, text);
    let rounds = "log2(members) rounds, without data";
    let tree = "the root has log2(members) messages with all data";
    let blocks = "a message has the blocks of all members below it";
    let vectors = "log2(members) rounds with whole vectors";
    let parts = "of vectors with an element for each member; others: recursive doubling";
    let doubled = "log2(members) rounds, each with twice the blocks of the one before";
    let pairs = format!("a message to each member, {AT_ONCE} at a time");
    vec![
        path("barrier", "dissemination", rounds).of(0, 0),
        path("broadcast, reduce", "binomial tree", tree),
        path("scatter, gather", "binomial tree", blocks),
        path("allreduce", "recursive doubling", vectors).of(0, SHORT),
        path("allreduce", "ring", parts).of(SHORT + 1, usize::MAX),
        path("allgather", "Bruck", doubled),
        path("alltoall, reduce_scatter", "pairwise exchange", &pairs),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coll::RankOf;

    #[test]
    fn limit_of_short_vectors_is_that_of_the_plan() {
        let rows = coll_paths();
        let row = rows.iter().find(|row| row.path == "recursive doubling").unwrap();
        let messages = |len| RankOf { rank: 0, of: 8 }.allreduce(len, 1).others().count();
        // Each of log2(8) rounds sends and receives; a ring has 7 rounds each way.
        assert_eq!((messages(row.sizes.1), messages(row.sizes.1 + 1)), (6, 28));
    }
}

//! Plan of one member in a collective operation, round by round (fi_collective(3)): messages to and
//! from others, and steps on its own memory.
//!
//! A plan depends only on the group's size, the member's rank and the number of bytes, so the plans
//! of all members fit together. Member addresses and message transport are the task of
//! a `CollRun`. All memory is one area per operation; a range of it is named by offset and
//! length.
//!
//! Algorithms: dissemination for barriers; binomial trees from and to a root; Bruck's for
//! all-gather; pairwise exchange for all-to-all and reduce-scatter; for all-reduce recursive
//! doubling of short and a ring of long vectors.
use crate::reserved::RANK_BITS;
use std::collections::BTreeSet;

/// Most members of a group.
pub(crate) const MAX_MEMBERS: usize = 1 << RANK_BITS;

/// A range of bytes of the operation's area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bytes {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// A message of a round: from or to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exchange {
    Send { to: usize, part: Bytes },
    Recv { from: usize, part: Bytes },
}

/// Something done to the member's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Copies `from` to the same length at `to`; the two do not overlap.
    Copy { from: Bytes, to: usize },
    /// Combines the elements of `from` into those at `into`.
    Reduce { from: Bytes, into: usize },
}

/// Steps, followed by concurrent messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Round {
    pub(super) steps: Vec<Step>,
    pub(super) transfers: Vec<Exchange>,
}

/// Plan of a member. The input is at the start of the area when it begins; the result is at
/// `result` when it ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CollPlan {
    pub(super) area: usize,
    pub(crate) input: usize,
    pub(crate) result: Bytes,
    pub(super) rounds: Vec<Round>,
}

/// Most messages in one round of an exchange with all members.
pub(super) const AT_ONCE: usize = 16;

/// Vectors up to this size are reduced by recursive doubling: few messages of
/// all of it, rather than many of a part.
pub(super) const SHORT: usize = 16 << 10;

fn part(at: usize, len: usize) -> Bytes {
    Bytes { at, len }
}

fn send(to: usize, part: Bytes) -> Exchange {
    Exchange::Send { to, part }
}

fn recv(from: usize, part: Bytes) -> Exchange {
    Exchange::Recv { from, part }
}

/// Returns a round with messages and no steps.
fn talk(transfers: Vec<Exchange>) -> Round {
    Round { steps: Vec::new(), transfers }
}

impl CollPlan {
    /// Returns the plan of a member with nothing to do.
    pub(super) fn nothing() -> Self {
        Self { area: 0, input: 0, result: part(0, 0), rounds: Vec::new() }
    }

    /// Returns the ranks of the senders and receivers of messages.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        self.rounds.iter().flat_map(|round| &round.transfers).map(|transfer| match transfer {
            Exchange::Send { to, .. } => *to,
            Exchange::Recv { from, .. } => *from,
        })
    }
}

/// A member of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankOf {
    /// The member's rank.
    pub(crate) rank: usize,
    /// Number of members of the group.
    pub(crate) of: usize,
}

impl RankOf {
    fn plus(self, distance: usize) -> usize {
        (self.rank + distance) % self.of
    }

    fn minus(self, distance: usize) -> usize {
        (self.rank + self.of - distance % self.of) % self.of
    }

    /// The member's place if `root` has place 0.
    fn behind(self, root: usize) -> usize {
        (self.rank + self.of - root) % self.of
    }

    /// Returns the distance to the parent in a binomial tree starting at `root`; `None` for the
    /// root itself.
    fn distance_to_parent(self, root: usize) -> Option<usize> {
        let relative = self.behind(root);
        (relative != 0).then(|| 1 << relative.trailing_zeros())
    }

    /// Returns the distances to the member's children in a binomial tree starting at `root`,
    /// farthest first.
    fn distances_to_children(self, root: usize) -> Vec<usize> {
        let relative = self.behind(root);
        let below = if relative == 0 { usize::BITS } else { relative.trailing_zeros() };
        let mut all: Vec<usize> = (0..below)
            .map_while(|bit| 1usize.checked_shl(bit))
            .take_while(|distance| *distance < self.of && relative + distance < self.of)
            .collect();
        all.reverse();
        all
    }

    /// Returns the communication partners of this member in barriers.
    pub(super) fn adjacent(self) -> BTreeSet<usize> {
        self.barrier().others().collect()
    }

    /// A barrier: no member goes on before all have come.
    pub(crate) fn barrier(self) -> CollPlan {
        let nothing = part(0, 0);
        let distances = std::iter::successors(Some(1), |d: &usize| d.checked_mul(2));
        let rounds = distances
            .take_while(|distance| *distance < self.of)
            .map(|distance| {
                talk(vec![recv(self.minus(distance), nothing), send(self.plus(distance), nothing)])
            })
            .collect();
        CollPlan { area: 0, input: 0, result: nothing, rounds }
    }

    /// A broadcast: the root's `len` bytes get to all members.
    pub(crate) fn broadcast(self, root: usize, len: usize) -> CollPlan {
        let all = part(0, len);
        let mut rounds = Vec::new();
        if let Some(distance) = self.distance_to_parent(root) {
            rounds.push(talk(vec![recv(self.minus(distance), all)]));
        }
        let children = self.distances_to_children(root);
        rounds.push(talk(children.iter().map(|d| send(self.plus(*d), all)).collect()));
        // The root has the result already.
        let (input, result) = if self.rank == root { (len, part(0, 0)) } else { (0, all) };
        CollPlan { area: len, input, result, rounds }
    }

    /// A reduction: the members' vectors of `len` bytes are combined at the root.
    pub(crate) fn reduce(self, root: usize, len: usize) -> CollPlan {
        let mine = part(0, len);
        let mut children = self.distances_to_children(root);
        // The nearest children have the fewest members below them, so that they are ready first.
        children.reverse();
        let parts = (0..children.len()).map(|index| part(len * (index + 1), len));
        let parts: Vec<_> = parts.collect();
        let from = children.iter().zip(&parts).map(|(d, relative)| recv(self.plus(*d), *relative));
        let mut rounds = vec![talk(from.collect())];
        let steps =
            parts.iter().map(|relative| Step::Reduce { from: *relative, into: 0 }).collect();
        let to = self.distance_to_parent(root).map(|d| send(self.minus(d), mine));
        rounds.push(Round { steps, transfers: to.into_iter().collect() });
        let result = if self.rank == root { mine } else { part(0, 0) };
        CollPlan { area: len * (children.len() + 1), input: len, result, rounds }
    }

    /// An all-reduction: the members' vectors of `len` bytes, of elements of `size` bytes, are
    /// combined, and all get the result.
    pub(crate) fn allreduce(self, len: usize, size: usize) -> CollPlan {
        if len <= SHORT || len / size < self.of {
            self.allreduce_short(len)
        } else {
            self.allreduce_long(len, size)
        }
    }

    /// All-reduction by recursive doubling. Members beyond a power of two give their vector to a
    /// neighbour first, and get the result from it at last.
    fn allreduce_short(self, len: usize) -> CollPlan {
        let (mine, other) = (part(0, len), part(len, len));
        let mut power = 1;
        while power * 2 <= self.of {
            power *= 2;
        }
        let extra = self.of - power;
        let combine = Step::Reduce { from: other, into: 0 };
        let mut rounds = Vec::new();
        let mut steps = Vec::new();
        // The odd ones of the first 2 * extra members do not take part.
        let relative = match self.rank {
            rank if rank < 2 * extra && rank % 2 == 1 => {
                rounds.push(talk(vec![send(rank - 1, mine)]));
                rounds.push(talk(vec![recv(rank - 1, mine)]));
                return CollPlan { area: 2 * len, input: len, result: mine, rounds };
            }
            rank if rank < 2 * extra => {
                rounds.push(talk(vec![recv(rank + 1, other)]));
                steps.push(combine);
                rank / 2
            }
            rank => rank - extra,
        };
        let rank_at =
            |relative: usize| if relative < extra { relative * 2 } else { relative + extra };
        let mut distance = 1;
        while distance < power {
            let peer = rank_at(relative ^ distance);
            let transfers = vec![recv(peer, other), send(peer, mine)];
            rounds.push(Round { steps: std::mem::take(&mut steps), transfers });
            steps.push(combine);
            distance *= 2;
        }
        let transfers =
            if self.rank < 2 * extra { vec![send(self.rank + 1, mine)] } else { Vec::new() };
        rounds.push(Round { steps, transfers });
        CollPlan { area: 2 * len, input: len, result: mine, rounds }
    }

    /// Splits a vector into one block for each member, of about the same number of elements.
    fn blocks(self, len: usize, size: usize) -> Vec<Bytes> {
        let count = len / size;
        let start = |block: usize| count * block / self.of * size;
        (0..self.of).map(|block| part(start(block), start(block + 1) - start(block))).collect()
    }

    /// All-reduction around a ring: each block is combined on its way round, then the results go
    /// round.
    fn allreduce_long(self, len: usize, size: usize) -> CollPlan {
        let blocks = self.blocks(len, size);
        let longest = blocks.iter().map(|block| block.len).max().unwrap_or(0);
        let (left, right) = (self.minus(1), self.plus(1));
        let mut rounds = Vec::new();
        let mut steps = Vec::new();
        for round in 0..self.of - 1 {
            let (out, into) = (blocks[self.minus(round)], blocks[self.minus(round + 1)]);
            let incoming = part(len, into.len);
            let transfers = vec![recv(left, incoming), send(right, out)];
            rounds.push(Round { steps: std::mem::take(&mut steps), transfers });
            steps.push(Step::Reduce { from: incoming, into: into.at });
        }
        for round in 0..self.of - 1 {
            let (out, into) =
                (blocks[(self.rank + 1 + self.of - round) % self.of], blocks[self.minus(round)]);
            let transfers = vec![recv(left, into), send(right, out)];
            rounds.push(Round { steps: std::mem::take(&mut steps), transfers });
        }
        rounds.push(Round { steps, transfers: Vec::new() });
        CollPlan { area: len + longest, input: len, result: part(0, len), rounds }
    }

    /// An all-gather: `len` bytes of each member get to all, in the order of ranks (Bruck).
    pub(crate) fn allgather(self, len: usize) -> CollPlan {
        let n = self.of;
        // Blocks are collected in the order that begins with the own one.
        let mut rounds = Vec::new();
        let mut have = 1;
        while have < n {
            let more = have.min(n - have);
            rounds.push(talk(vec![
                recv(self.plus(have), part(have * len, more * len)),
                send(self.minus(have), part(0, more * len)),
            ]));
            have += more;
        }
        let (front, back) = ((n - self.rank) * len, self.rank * len);
        let steps = vec![
            Step::Copy { from: part(0, front), to: n * len + back },
            Step::Copy { from: part(front, back), to: n * len },
        ];
        rounds.push(Round { steps, transfers: Vec::new() });
        CollPlan { area: 2 * n * len, input: len, result: part(n * len, n * len), rounds }
    }

    /// An all-to-all exchange: each member has a block of `len` bytes for each other.
    pub(crate) fn alltoall(self, len: usize) -> CollPlan {
        let n = self.of;
        let (from, to) =
            (|rank: usize| part(rank * len, len), |rank: usize| part((n + rank) * len, len));
        let own = Step::Copy { from: from(self.rank), to: to(self.rank).at };
        let mut rounds = vec![Round { steps: vec![own], transfers: Vec::new() }];
        let distances: Vec<usize> = (1..n).collect();
        for some in distances.chunks(AT_ONCE) {
            let recvs = some.iter().map(|d| recv(self.minus(*d), to(self.minus(*d))));
            let sends = some.iter().map(|d| send(self.plus(*d), from(self.plus(*d))));
            rounds.push(talk(recvs.chain(sends).collect()));
        }
        CollPlan { area: 2 * n * len, input: n * len, result: part(n * len, n * len), rounds }
    }

    /// Returns the plan of a reduce-scatter: vectors with a block of `len` bytes for each member
    /// are combined, and each member gets its block.
    pub(crate) fn reduce_scatter(self, len: usize) -> CollPlan {
        let n = self.of;
        let block = |rank: usize| part(rank * len, len);
        let mine = block(self.rank);
        let part_at = |index: usize| part((n + index) * len, len);
        let mut rounds = Vec::new();
        let mut steps = Vec::new();
        let distances: Vec<usize> = (1..n).collect();
        for some in distances.chunks(AT_ONCE) {
            let recvs = some.iter().enumerate().map(|(i, d)| recv(self.minus(*d), part_at(i)));
            let sends = some.iter().map(|d| send(self.plus(*d), block(self.plus(*d))));
            let transfers = recvs.chain(sends).collect();
            rounds.push(Round { steps: std::mem::take(&mut steps), transfers });
            steps = (0..some.len())
                .map(|index| Step::Reduce { from: part_at(index), into: mine.at })
                .collect();
        }
        rounds.push(Round { steps, transfers: Vec::new() });
        CollPlan { area: (n + AT_ONCE.min(n)) * len, input: n * len, result: mine, rounds }
    }

    /// Returns the number of blocks of the tree starting at `relative`, with its parent, or the
    /// position of a possible parent, at distance `distance`.
    fn below(self, relative: usize, distance: usize) -> usize {
        distance.min(self.of - relative)
    }

    /// A scatter: of the root's blocks of `len` bytes each member gets one.
    pub(crate) fn scatter(self, root: usize, len: usize) -> CollPlan {
        let n = self.of;
        let relative = self.behind(root);
        let Some(distance) = self.distance_to_parent(root) else {
            // The blocks are in the order of places behind the root, so that each child takes a
            // run of them.
            let turned = n * len;
            let steps = vec![
                Step::Copy { from: part(root * len, (n - root) * len), to: turned },
                Step::Copy { from: part(0, root * len), to: turned + (n - root) * len },
            ];
            let children = self.distances_to_children(root);
            let transfers = children
                .iter()
                .map(|d| send(self.plus(*d), part(turned + d * len, self.below(*d, *d) * len)));
            let transfers = transfers.collect();
            let rounds = vec![Round { steps, transfers }];
            return CollPlan {
                area: 2 * n * len,
                input: n * len,
                result: part(turned, len),
                rounds,
            };
        };
        let blocks = self.below(relative, distance);
        let children = self.distances_to_children(root);
        let to_child =
            |d: &usize| send(self.plus(*d), part(d * len, self.below(relative + d, *d) * len));
        let rounds = vec![
            talk(vec![recv(self.minus(distance), part(0, blocks * len))]),
            talk(children.iter().map(to_child).collect()),
        ];
        CollPlan { area: blocks * len, input: 0, result: part(0, len), rounds }
    }

    /// A gather: `len` bytes of each member get to the root, in the order of ranks.
    pub(crate) fn gather(self, root: usize, len: usize) -> CollPlan {
        let n = self.of;
        let relative = self.behind(root);
        let distance = self.distance_to_parent(root);
        let blocks = distance.map_or(n, |distance| self.below(relative, distance));
        let children = self.distances_to_children(root);
        let from_child =
            |d: &usize| recv(self.plus(*d), part(d * len, self.below(relative + d, *d) * len));
        let mut rounds = vec![talk(children.iter().map(from_child).collect())];
        if let Some(distance) = distance {
            rounds.push(talk(vec![send(self.minus(distance), part(0, blocks * len))]));
            return CollPlan { area: blocks * len, input: len, result: part(0, 0), rounds };
        }
        let steps = vec![
            Step::Copy { from: part(0, (n - root) * len), to: (n + root) * len },
            Step::Copy { from: part((n - root) * len, root * len), to: n * len },
        ];
        rounds.push(Round { steps, transfers: Vec::new() });
        CollPlan { area: 2 * n * len, input: len, result: part(n * len, n * len), rounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// Carries the plans of all members out, one message at a time; elements are
    /// bytes, and are added up.
    fn run(plans: &[CollPlan], inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let n = plans.len();
        let mut areas: Vec<Vec<u8>> = plans.iter().map(|plan| vec![0; plan.area]).collect();
        for ((area, plan), input) in areas.iter_mut().zip(plans).zip(inputs) {
            area[..plan.input].copy_from_slice(&input[..plan.input]);
        }
        let mut sent: HashMap<(usize, usize), VecDeque<Vec<u8>>> = HashMap::new();
        let mut at = vec![0; n];
        let mut started = vec![false; n];
        loop {
            let mut moved = false;
            for rank in 0..n {
                let Some(round) = plans[rank].rounds.get(at[rank]) else { continue };
                let area = &mut areas[rank];
                if !started[rank] {
                    started[rank] = true;
                    moved = true;
                    for step in &round.steps {
                        match *step {
                            Step::Copy { from, to } => {
                                area.copy_within(from.at..from.at + from.len, to)
                            }
                            Step::Reduce { from, into } => {
                                for i in 0..from.len {
                                    area[into + i] = area[into + i].wrapping_add(area[from.at + i]);
                                }
                            }
                        }
                    }
                    for transfer in &round.transfers {
                        if let Exchange::Send { to, part } = *transfer {
                            assert_ne!(to, rank);
                            let bytes = area[part.at..part.at + part.len].to_vec();
                            sent.entry((rank, to)).or_default().push_back(bytes);
                        }
                    }
                }
                let came = |t: &Exchange| match *t {
                    Exchange::Recv { from, .. } => {
                        sent.get(&(from, rank)).is_some_and(|queue| !queue.is_empty())
                    }
                    Exchange::Send { .. } => true,
                };
                if !round.transfers.iter().all(came) {
                    continue;
                }
                for transfer in &round.transfers {
                    if let Exchange::Recv { from, part } = *transfer {
                        let bytes = sent.get_mut(&(from, rank)).unwrap().pop_front().unwrap();
                        assert_eq!(bytes.len(), part.len, "{from} to {rank}");
                        area[part.at..part.at + part.len].copy_from_slice(&bytes);
                    }
                }
                at[rank] += 1;
                started[rank] = false;
                moved = true;
            }
            if !moved {
                break;
            }
        }
        assert!(sent.values().all(VecDeque::is_empty), "a message was not received");
        for rank in 0..n {
            assert_eq!(at[rank], plans[rank].rounds.len(), "{rank} waits for ever");
        }
        let result = |(area, plan): (&Vec<u8>, &CollPlan)| {
            area[plan.result.at..plan.result.at + plan.result.len].to_vec()
        };
        areas.iter().zip(plans).map(result).collect()
    }

    fn members(of: usize) -> impl Iterator<Item = RankOf> {
        (0..of).map(move |rank| RankOf { rank, of })
    }

    /// As many different bytes for each of `n` members.
    fn inputs(n: usize, len: usize) -> Vec<Vec<u8>> {
        let byte = |rank: usize, i: usize| (rank * 37 + i * 11 + 1) as u8;
        (0..n).map(|rank| (0..len).map(|i| byte(rank, i)).collect()).collect()
    }

    fn sum(inputs: &[Vec<u8>]) -> Vec<u8> {
        let add = |i: usize| inputs.iter().fold(0u8, |sum, input| sum.wrapping_add(input[i]));
        (0..inputs[0].len()).map(add).collect()
    }

    #[test]
    fn every_collective_gives_its_result_for_any_number_of_members() {
        for n in 1..=19 {
            for len in [0, 1, 3, 40] {
                let small = inputs(n, len);
                let big = inputs(n, n * len);
                let all = small.concat();
                let plans: Vec<_> = members(n).map(RankOf::barrier).collect();
                run(&plans, &small);

                let plans: Vec<_> = members(n).map(|m| m.allgather(len)).collect();
                assert!(run(&plans, &small).iter().all(|got| *got == all), "allgather {n}");

                let plans: Vec<_> = members(n).map(|m| m.alltoall(len)).collect();
                for (rank, got) in run(&plans, &big).iter().enumerate() {
                    let want: Vec<u8> =
                        big.iter().flat_map(|b| b[rank * len..(rank + 1) * len].to_vec()).collect();
                    assert_eq!(*got, want, "alltoall {n}");
                }

                let total = sum(&big);
                let plans: Vec<_> = members(n).map(|m| m.reduce_scatter(len)).collect();
                for (rank, got) in run(&plans, &big).iter().enumerate() {
                    assert_eq!(*got, total[rank * len..(rank + 1) * len], "reduce_scatter {n}");
                }

                for plan in [RankOf::allreduce_short, |m: RankOf, len| m.allreduce_long(len, 1)] {
                    let plans: Vec<_> = members(n).map(|m| plan(m, len)).collect();
                    let want = sum(&small);
                    assert!(run(&plans, &small).iter().all(|got| *got == want), "allreduce {n}");
                }
                for root in 0..n {
                    let plans: Vec<_> = members(n).map(|m| m.broadcast(root, len)).collect();
                    for (rank, got) in run(&plans, &small).iter().enumerate() {
                        let want = if rank == root { &[][..] } else { &small[root] };
                        assert_eq!(got, want, "broadcast {n} {root}");
                    }

                    let plans: Vec<_> = members(n).map(|m| m.reduce(root, len)).collect();
                    assert_eq!(run(&plans, &small)[root], sum(&small), "reduce {n} {root}");

                    let plans: Vec<_> = members(n).map(|m| m.gather(root, len)).collect();
                    assert_eq!(run(&plans, &small)[root], all, "gather {n} {root}");

                    let plans: Vec<_> = members(n).map(|m| m.scatter(root, len)).collect();
                    for (rank, got) in run(&plans, &big).iter().enumerate() {
                        assert_eq!(
                            *got,
                            big[root][rank * len..(rank + 1) * len],
                            "scatter {n} {root}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn long_vectors_are_cut_between_elements() {
        let member = RankOf { rank: 1, of: 3 };
        for block in member.blocks(8 * 10, 8) {
            assert_eq!((block.at % 8, block.len % 8), (0, 0));
        }
        let CollPlan { area, .. } = member.allreduce(1 << 20, 8);
        assert!(area < 2 << 20);
    }
}

//! Exchange of ids between the members of a set over the endpoint of another provider
//! (`FI_PEER_TRANSFER` of fi_peer(3)). Only an index of the owner's address vector tells one peer
//! from another there: addresses are not shown, a completion may have no source, and a receive may
//! not be able to name one.
//!
//! Every endpoint has a random number, its id, at the beginning of each of its messages. Before
//! joining a set, an endpoint asks every other member for its id, by a message to the member's
//! index with a random number for each question. Only the endpoint at the index gets the number, so
//! an answer with it has the id of this index.
//!
//! The index of a question's sender is unknown as well. The answer goes to all candidates: a
//! question has the number of members and the ranks of both ends, and each set with this number and
//! this own rank has one candidate. Other endpoints ignore an answer to an unknown question. A
//! bounded number of questions is stored until their sets are joined.
use super::join_set::extract;
use super::plan::MAX_MEMBERS;
use crate::abi::fi_addr_t;
use crate::addr::{Addr, EndpointName};
use crate::deferred::DeferredQueue;
use crate::error::{Error, Result};
use crate::notices::{NoticeLine, Port};
use crate::reserved::IDENTITY_TAG;
use crate::sys;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Limit of stored questions.
const MAX_QUESTIONS: usize = MAX_MEMBERS;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The ids of an endpoint and of the peers it knows.
#[derive(Debug)]
pub(crate) struct MemberIds {
    own: u64,
    known: Mutex<KnownIds>,
}

#[derive(Debug, Default)]
struct KnownIds {
    by_addr: HashMap<fi_addr_t, u64>,
    by_id: HashMap<u64, fi_addr_t>,
}

impl MemberIds {
    /// Returns the ids of a new endpoint.
    pub(crate) fn new(own: u64) -> Self {
        Self { own, known: Mutex::default() }
    }

    /// The endpoint's own id.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The id of the peer at this index, if it is known.
    pub(crate) fn of(&self, addr: fi_addr_t) -> Option<u64> {
        lock(&self.known).by_addr.get(&addr).copied()
    }

    /// The index of the peer with this id, if it is known.
    pub(crate) fn addr_of(&self, id: u64) -> Option<fi_addr_t> {
        lock(&self.known).by_id.get(&id).copied()
    }

    /// Notes the id of the peer at an index. True if another peer was there before.
    pub(crate) fn learn(&self, addr: fi_addr_t, id: u64) -> bool {
        let mut known = lock(&self.known);
        let before = known.by_addr.insert(addr, id).filter(|before| *before != id);
        if let Some(before) = before {
            if known.by_id.get(&before) == Some(&addr) {
                known.by_id.remove(&before);
            }
        }
        known.by_id.insert(id, addr);
        before.is_some()
    }
}

/// A question for an id, or the answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IdNote {
    answers: bool,
    /// The number of members of the set in question.
    members: u32,
    /// The ranks of the note's sender and receiver in it.
    from: u32,
    to: u32,
    /// The number of the question.
    number: u64,
    /// The id of the note's sender.
    id: u64,
}

impl IdNote {
    const LEN: usize = 32;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let words = [u32::from(self.answers), self.members, self.from, self.to];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes[16..24].copy_from_slice(&self.number.to_be_bytes());
        bytes[24..].copy_from_slice(&self.id.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
        let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_be_bytes);
        let [kind, members, from, to] = [0, 4, 8, 12].map(word);
        let is_whole = kind <= 1 && from < members && to < members && from != to;
        let (number, id) = (long(16), long(24));
        is_whole.then_some(Self { answers: kind == 1, members, from, to, number, id })
    }
}

/// The sender of a question, the number of members, and the ranks of sender and receiver.
type QuestionKey = (u64, u32, u32, u32);

/// A received question.
struct StoredQuestion {
    note: IdNote,
    /// The destinations of its answers.
    answered: HashSet<fi_addr_t>,
}

/// Called once with the ids of a set's members, in the order of ranks.
type Identified = Box<dyn FnOnce(Result<Vec<u64>>) + Send>;

/// A set with questions to its members in flight.
struct Asking {
    members: Arc<[fi_addr_t]>,
    rank: usize,
    /// The numbers of the questions, by rank.
    numbers: Vec<u64>,
    ids: Vec<Option<u64>>,
    /// The ranks with a repeated question.
    again: HashSet<usize>,
    then: Identified,
}

impl Asking {
    fn question(&self, to: usize, own: u64) -> IdNote {
        let (members, from) = (self.members.len() as u32, self.rank as u32);
        let number = self.numbers[to];
        IdNote { answers: false, members, from, to: to as u32, number, id: own }
    }
}

/// The exchange of ids, without its messages.
#[derive(Default)]
struct IdExchange {
    /// All sets, and the own rank in each.
    sets: Vec<(Arc<[fi_addr_t]>, usize)>,
    asking: Vec<Asking>,
    questions: HashMap<QuestionKey, StoredQuestion>,
    /// The questions in the order of their coming.
    order: VecDeque<QuestionKey>,
}

/// The consequences of a call of an [`IdExchange`].
#[derive(Default)]
struct IdActions {
    /// Notes to be sent, and their destinations.
    sends: Vec<(fi_addr_t, IdNote)>,
    /// An index and the id of the endpoint there.
    learnt: Option<(fi_addr_t, u64)>,
    /// Sets with known members only.
    over: Vec<(Identified, Vec<u64>)>,
}

impl IdExchange {
    /// Sends questions to the members of a set.
    fn begin(&mut self, mut asking: Asking, own: u64) -> IdActions {
        let mut actions = IdActions::default();
        asking.ids[asking.rank] = Some(own);
        let set = (asking.members.clone(), asking.rank);
        if !self.sets.contains(&set) {
            self.sets.push(set.clone());
            for question in self.questions.values_mut() {
                answer(question, &set, own, &mut actions.sends);
            }
        }
        let others = (0..asking.members.len()).filter(|rank| *rank != asking.rank);
        actions.sends.extend(others.map(|rank| (asking.members[rank], asking.question(rank, own))));
        self.asking.push(asking);
        self.finish(&mut actions);
        actions
    }

    /// Handles a note from any peer.
    fn receive(&mut self, note: IdNote, own: u64) -> IdActions {
        let mut actions = IdActions::default();
        if note.id == own {
            return actions;
        }
        if note.answers {
            let is_of = |asking: &&mut Asking| {
                let at = note.from as usize;
                asking.members.len() == note.members as usize
                    && at != asking.rank
                    && asking.numbers[at] == note.number
            };
            if let Some(asking) = self.asking.iter_mut().find(is_of) {
                let at = note.from as usize;
                asking.ids[at] = Some(note.id);
                actions.learnt = Some((asking.members[at], note.id));
            }
            self.finish(&mut actions);
            return actions;
        }
        let key = (note.id, note.members, note.from, note.to);
        let mut question = StoredQuestion { note, answered: HashSet::new() };
        for set in &self.sets {
            answer(&mut question, set, own, &mut actions.sends);
        }
        if self.questions.insert(key, question).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_QUESTIONS {
            if let Some(oldest) = self.order.pop_front() {
                self.questions.remove(&oldest);
            }
        }
        // The asker may have begun after it was asked, or have lost the question among others: it is asked again.
        for asking in &mut self.asking {
            let from = note.from as usize;
            let is_of = asking.members.len() == note.members as usize
                && asking.rank == note.to as usize
                && asking.ids[from].is_none();
            if is_of && asking.again.insert(from) {
                actions.sends.push((asking.members[from], asking.question(from, own)));
            }
        }
        actions
    }

    /// Removes the sets with known members only.
    fn finish(&mut self, actions: &mut IdActions) {
        let is_over = |asking: &Asking| asking.ids.iter().all(Option::is_some);
        for asking in extract(&mut self.asking, is_over) {
            actions.over.push((asking.then, asking.ids.into_iter().flatten().collect()));
        }
    }

    /// Removes the sets with this unanswered question after its failure.
    fn fail(&mut self, number: u64) -> Vec<Identified> {
        let waits = |asking: &Asking| {
            let mut all = asking.numbers.iter().zip(&asking.ids);
            all.any(|(of, id)| *of == number && id.is_none())
        };
        extract(&mut self.asking, waits).into_iter().map(|asking| asking.then).collect()
    }
}

/// Answers a question to its candidate in this set.
fn answer(
    question: &mut StoredQuestion,
    (members, rank): &(Arc<[fi_addr_t]>, usize),
    own: u64,
    sends: &mut Vec<(fi_addr_t, IdNote)>,
) {
    let note = question.note;
    if members.len() != note.members as usize || *rank != note.to as usize {
        return;
    }
    let asker = members[note.from as usize];
    if question.answered.insert(asker) {
        sends
            .push((asker, IdNote { answers: true, from: note.to, to: note.from, id: own, ..note }));
    }
}

/// The exchange of ids between an endpoint and its peers, in tasks of the domain.
pub(crate) struct Identification {
    ids: Arc<MemberIds>,
    notes: Arc<NoticeLine>,
    state: Mutex<IdExchange>,
    /// Called with an index after a change of the endpoint there.
    replaced: Box<dyn Fn(fi_addr_t) + Send + Sync>,
}

impl Identification {
    /// Returns the exchange of an endpoint.
    pub(crate) fn new(
        ids: Arc<MemberIds>,
        port: Weak<dyn Port>,
        (later, queue): (Arc<DeferredQueue>, usize),
        replaced: impl Fn(fi_addr_t) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let notes = NoticeLine::new(port, later, queue, IDENTITY_TAG);
        let (state, replaced) = (Mutex::default(), Box::new(replaced));
        Arc::new(Self { ids, notes, state, replaced })
    }

    /// Starts receiving questions and answers. To be called once, without locks.
    pub(crate) fn listen(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.notes.listen(move |_, bytes: &[u8; IdNote::LEN]| {
            if let (Some(this), Some(note)) = (weak.upgrade(), IdNote::read(bytes)) {
                let actions = lock(&this.state).receive(note, this.ids.own());
                this.carry_out(actions);
            }
        });
    }

    /// Gets the ids of the members of a set, with this endpoint at the given rank. `then` is called
    /// once, with a name for each member, equal at all members.
    pub(crate) fn identify(
        self: &Arc<Self>,
        members: Arc<[fi_addr_t]>,
        rank: usize,
        then: impl FnOnce(Result<Vec<Addr>>) + Send + 'static,
    ) {
        let count = members.len();
        let asking = Asking {
            members,
            rank,
            numbers: (0..count).map(|_| sys::random()).collect(),
            ids: vec![None; count],
            again: HashSet::new(),
            then: Box::new(|ids| then(ids.and_then(|ids| ids.into_iter().map(name).collect()))),
        };
        let actions = lock(&self.state).begin(asking, self.ids.own());
        self.carry_out(actions);
    }

    fn carry_out(self: &Arc<Self>, actions: IdActions) {
        if let Some((addr, id)) = actions.learnt {
            if self.ids.learn(addr, id) {
                (self.replaced)(addr);
            }
        }
        for (to, note) in actions.sends {
            let this = self.clone();
            self.notes.send(to, note.write(), move |result| {
                if let (Err(error), false) = (result, note.answers) {
                    let failed = lock(&this.state).fail(note.number);
                    failed.into_iter().for_each(|then| then(Err(error)));
                }
            });
        }
        actions.over.into_iter().for_each(|(then, ids)| then(Ok(ids)));
    }
}

/// The name of the endpoint with this id.
fn name(id: u64) -> Result<Addr> {
    let text = CString::new(format!("{id:016x}")).map_err(|_| Error::INVAL)?;
    EndpointName::new(&text).map(Addr::Name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoints with notes in flight. The index of endpoint `b` at endpoint `a` is `10 * a + b`.
    struct World {
        ends: Vec<IdExchange>,
        mail: VecDeque<(usize, IdNote)>,
        known: Arc<Mutex<Vec<(usize, Vec<u64>)>>>,
        numbers: u64,
    }

    fn id(end: usize) -> u64 {
        1000 + end as u64
    }

    impl World {
        fn new(ends: usize) -> Self {
            let ends = (0..ends).map(|_| IdExchange::default()).collect();
            Self { ends, mail: VecDeque::new(), known: Arc::default(), numbers: 1 }
        }

        fn carry_out(&mut self, end: usize, actions: IdActions) {
            let base = 10 * end as u64;
            self.mail.extend(actions.sends.iter().map(|(to, note)| ((to - base) as usize, *note)));
            if let Some((addr, of)) = actions.learnt {
                assert_eq!(of, id((addr - base) as usize), "a wrong id");
            }
            actions.over.into_iter().for_each(|(then, ids)| then(Ok(ids)));
        }

        fn join(&mut self, end: usize, set: &[usize]) {
            let members: Arc<[fi_addr_t]> = set.iter().map(|of| (10 * end + of) as u64).collect();
            let rank = set.iter().position(|of| *of == end).unwrap();
            let known = self.known.clone();
            let numbers = (0..set.len() as u64).map(|at| self.numbers + at).collect();
            self.numbers += set.len() as u64;
            let asking = Asking {
                ids: vec![None; members.len()],
                members,
                rank,
                numbers,
                again: HashSet::new(),
                then: Box::new(move |ids| lock(&known).push((end, ids.unwrap()))),
            };
            let actions = self.ends[end].begin(asking, id(end));
            self.carry_out(end, actions);
        }

        fn deliver(&mut self) {
            while let Some((to, note)) = self.mail.pop_front() {
                let note = IdNote::read(&note.write()).unwrap();
                let actions = self.ends[to].receive(note, id(to));
                self.carry_out(to, actions);
            }
        }

        fn take(&self) -> Vec<(usize, Vec<u64>)> {
            let mut known = std::mem::take(&mut *lock(&self.known));
            known.sort();
            known
        }
    }

    #[test]
    fn members_of_sets_of_one_size_that_overlap_learn_who_is_in_which() {
        let mut world = World::new(5);
        let sets = [[0, 1, 2], [0, 1, 3], [0, 4, 2]];
        // Each member joins the sets in another order, and all at once.
        for end in 0..5 {
            for at in 0..sets.len() {
                let set = sets[(at + end) % sets.len()];
                if set.contains(&end) {
                    world.join(end, &set);
                }
            }
        }
        world.deliver();
        let mut want: Vec<(usize, Vec<u64>)> = sets
            .iter()
            .flat_map(|set| set.iter().map(|end| (*end, set.iter().map(|of| id(*of)).collect())))
            .collect();
        want.sort();
        assert_eq!(world.take(), want);
    }

    #[test]
    fn a_member_that_joins_late_is_known_to_all_then_and_not_before() {
        let mut world = World::new(3);
        world.join(0, &[0, 1, 2]);
        world.join(2, &[0, 1, 2]);
        world.deliver();
        assert_eq!(world.take(), []);
        world.join(1, &[0, 1, 2]);
        world.deliver();
        assert_eq!(world.take().len(), 3);
    }

    #[test]
    fn a_set_of_one_sends_no_question() {
        let mut world = World::new(1);
        world.join(0, &[0]);
        assert!(world.mail.is_empty());
        assert_eq!(world.take(), [(0, vec![id(0)])]);
    }

    #[test]
    fn an_answer_without_the_number_of_a_question_means_nothing() {
        let mut world = World::new(2);
        world.join(0, &[0, 1]);
        let forged = IdNote { answers: true, members: 2, from: 1, to: 0, number: 77777, id: id(9) };
        let actions = world.ends[0].receive(forged, id(0));
        assert!(actions.learnt.is_none() && actions.over.is_empty() && actions.sends.is_empty());
        assert_eq!(world.take(), []);
    }

    #[test]
    fn questions_of_unknown_peers_are_bounded_and_asking_again_gets_an_answer() {
        let mut world = World::new(2);
        for id in 0..MAX_QUESTIONS as u64 + 10 {
            let note =
                IdNote { answers: false, members: 2, from: 0, to: 1, number: 5, id: id << 20 };
            let actions = world.ends[1].receive(note, id);
            assert!(actions.sends.is_empty());
        }
        assert_eq!(world.ends[1].questions.len(), MAX_QUESTIONS);
        assert_eq!(world.ends[1].order.len(), MAX_QUESTIONS);
        world.join(0, &[0, 1]);
        // The question is lost among the others.
        world.mail.clear();
        world.ends[1].questions.clear();
        world.ends[1].order.clear();
        world.join(1, &[0, 1]);
        world.deliver();
        assert_eq!(world.take().len(), 2);
    }

    #[test]
    fn notes_that_make_no_sense_are_none() {
        let good = IdNote { answers: false, members: 3, from: 0, to: 2, number: 4, id: 5 };
        assert_eq!(IdNote::read(&good.write()), Some(good));
        for bad in [
            IdNote { from: 3, ..good },
            IdNote { to: 3, ..good },
            IdNote { from: 2, ..good },
            IdNote { members: 0, ..good },
        ] {
            assert_eq!(IdNote::read(&bad.write()), None);
        }
        let mut bytes = good.write();
        bytes[3] = 2;
        assert_eq!(IdNote::read(&bytes), None);
    }

    #[test]
    fn a_new_endpoint_at_an_index_is_reported_once() {
        let ids = MemberIds::new(1);
        assert!(!ids.learn(5, 10) && !ids.learn(5, 10) && !ids.learn(6, 11));
        assert_eq!((ids.addr_of(10), ids.of(5)), (Some(5), Some(10)));
        assert!(ids.learn(5, 12));
        assert_eq!((ids.addr_of(10), ids.addr_of(12), ids.of(5)), (None, Some(5), Some(12)));
        assert!(!ids.learn(5, 12));
    }
}

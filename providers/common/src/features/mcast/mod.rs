//! Multicast groups (fi_join of fi_cm(3)) of reliable endpoints, by replication: a message to a
//! group is sent to each of its members like any other.
//!
//! A [`MulticastGroups`] is the state of one endpoint. There is no directory: membership is known
//! from [`GroupNotice`]s among the endpoints with each other in their address vectors. An endpoint
//! joining as a sender asks them all and stores the list of members. An endpoint joining as a
//! receiver notifies them all, and the senders store it. No other statement of peers is stored, so
//! they cannot exhaust memory. The join completes when all have answered or are unreachable:
//!
//! | notice | answer |
//! |---|---|
//! | `Ask`: are you a member? | `In` or `Out` |
//! | `Joined`: I am one from now on | `Known` |
//! | `Out`: I am none any more | – |
//! | `Again`: now I know you; repeat your notice | all unanswered notices |
//!
//! An endpoint without the asking peer in its address vector cannot answer. It remembers the port
//! sent by the peer, and sends `Again` when an address with this port is inserted.
//!
//! A member is removed when its connection ends. Before the next message to the group it is asked
//! if it has joined again. The same holds for every peer with an address inserted after the join of
//! the group. Until their answers arrive no message can be sent to the group (-FI_EAGAIN),
//! preserving the order of all messages to a peer.
//!
//! Notices have [`MULTICAST_TAG`], not used by collective operations. A provider sends no notice to
//! a peer without announced support in the connection handshake (-FI_EOPNOTSUPP,
//! [`is_group_notice`](crate::deferred::is_group_notice)): such a peer is in no group.
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::av::{self, Av};
use crate::deferred::DeferredQueue;
use crate::error::{Error, Result};
use crate::notices::{NoticeLine, Port};
use crate::reserved::{MULTICAST_ADDR, MULTICAST_TAG};
use crate::slab::Slab;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Maximum number of unsent answers to one peer; further notices of this peer are not answered.
const MAX_ANSWERS: usize = 1024;

/// The name of a multicast group: its IP address and port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GroupAddr {
    ip: [u8; 16],
    port: u16,
}

impl GroupAddr {
    /// The name of the group at this address; -FI_EINVAL if it is no multicast address.
    pub(crate) fn of(addr: SocketAddr) -> Result<Self> {
        if !addr.ip().is_multicast() {
            return Err(Error::INVAL);
        }
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Ok(Self { ip: ip.octets(), port: addr.port() })
    }
}

/// Type of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Ask = 1,
    In,
    Out,
    Joined,
    Known,
    Again,
}

/// Notice in its wire format: in network byte order the type, the port of the sender, the port of
/// the group, zeros, and the address of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GroupNotice {
    word: Word,
    /// The port of the sender's own address.
    port: u16,
    group: GroupAddr,
}

impl GroupNotice {
    const LEN: usize = 24;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&(self.word as u16).to_be_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.group.port.to_be_bytes());
        bytes[8..].copy_from_slice(&self.group.ip);
        bytes
    }

    /// Parses a notice; `None` for an unknown type.
    fn read(bytes: &[u8; Self::LEN]) -> Option<Self> {
        const WORDS: [Word; 6] =
            [Word::Ask, Word::In, Word::Out, Word::Joined, Word::Known, Word::Again];
        let [w0, w1, p0, p1, g0, g1, 0, 0, ip @ ..] = *bytes else { return None };
        let word = u16::from_be_bytes([w0, w1]);
        let word = WORDS.into_iter().find(|known| *known as u16 == word)?;
        let group = GroupAddr { ip, port: u16::from_be_bytes([g0, g1]) };
        Some(Self { word, port: u16::from_be_bytes([p0, p1]), group })
    }
}

/// Role of an endpoint in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupRole {
    /// The endpoint sends to the group.
    pub sends: bool,
    /// True if the endpoint receives messages to the group.
    pub receives: bool,
}

/// Group joined by the endpoint. Peers are known by their indices.
struct JoinedGroup {
    name: GroupAddr,
    part: GroupRole,
    /// For a sender: the receiving members, and peers asked for their membership (`asked`).
    members: BTreeSet<fi_addr_t>,
    asked: HashSet<fi_addr_t>,
    /// Members whose connection ended, asked again before the next message.
    gone: HashSet<fi_addr_t>,
    /// For a receiver: peers notified of the membership without a confirmation yet.
    notified: HashSet<fi_addr_t>,
    /// Callback completing the join, called once all peers have answered for the first time.
    joined: Option<Box<dyn FnOnce() + Send>>,
}

impl JoinedGroup {
    fn new(name: GroupAddr, part: GroupRole) -> Self {
        Self {
            name,
            part,
            members: BTreeSet::new(),
            asked: HashSet::new(),
            gone: HashSet::new(),
            notified: HashSet::new(),
            joined: None,
        }
    }

    /// Completes the join if no answer is pending. Called with the lock held, so the group exists
    /// while `joined` runs.
    fn settle(&mut self) {
        if self.asked.is_empty() && self.notified.is_empty() {
            if let Some(joined) = self.joined.take() {
                joined();
            }
        }
    }

    /// Forgets a peer removed from the address vector.
    fn forget(&mut self, peer: fi_addr_t) {
        self.members.remove(&peer);
        self.asked.remove(&peer);
        self.gone.remove(&peer);
        self.notified.remove(&peer);
        self.settle();
    }

    /// Returns the first notices for a peer: question and announcement.
    fn introduce(&mut self, peer: fi_addr_t) -> impl Iterator<Item = Word> + use<> {
        let ask = self.part.sends && self.asked.insert(peer);
        let tell = self.part.receives && self.notified.insert(peer);
        [ask.then_some(Word::Ask), tell.then_some(Word::Joined)].into_iter().flatten()
    }
}

/// An endpoint's multicast groups.
pub(crate) struct MulticastGroups {
    me: Weak<Self>,
    notices: Arc<NoticeLine>,
    av: Arc<Av>,
    /// The port of the endpoint's own address.
    own_port: u16,
    state: Mutex<GroupsState>,
}

#[derive(Default)]
struct GroupsState {
    groups: Slab<JoinedGroup>,
    numbers: HashMap<GroupAddr, u32>,
    /// Ports of peers with a question or announcement before their insertion in the address vector.
    unknown_peers: HashSet<u16>,
    /// Peers sent `Again` after their insertion in the address vector.
    reminded: HashSet<fi_addr_t>,
    /// Number of unsent answers to each peer, at most [`MAX_ANSWERS`].
    answers: HashMap<fi_addr_t, usize>,
}

impl GroupsState {
    fn group(&mut self, name: GroupAddr) -> Option<&mut JoinedGroup> {
        let number = *self.numbers.get(&name)?;
        self.groups.get_mut(number)
    }
}

impl MulticastGroups {
    /// Creates the multicast state of an endpoint with this address vector, listening at
    /// `own_port`, and posts the receive for notices. No lock may be held.
    pub(crate) fn new(
        port: Weak<dyn Port>,
        later: Arc<DeferredQueue>,
        task_queue: usize,
        av: Arc<Av>,
        own_port: u16,
    ) -> Arc<Self> {
        let notices = NoticeLine::new(port, later.clone(), task_queue, MULTICAST_TAG);
        let groups = Arc::new_cyclic(|me| {
            let me = me.clone();
            Self { me, notices, av, own_port, state: Mutex::default() }
        });
        let weak = groups.me.clone();
        let listener: Weak<dyn av::AvObserverHandle> = weak.clone();
        groups.av.listen(listener);
        let of_ends = weak.clone();
        later.listen(task_queue, move |name, _| {
            if let Some(groups) = of_ends.upgrade() {
                groups.lost(name);
            }
        });
        groups.notices.listen(move |from, bytes| {
            if let (Some(groups), Some(notice)) = (weak.upgrade(), GroupNotice::read(bytes)) {
                groups.noticed(from, &notice);
            }
        });
        groups
    }

    fn lock(&self) -> MutexGuard<'_, GroupsState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Begins to join a group, and returns its address for sends; -FI_EALREADY if the endpoint
    /// is in it.
    pub(crate) fn enter(&self, name: GroupAddr, part: GroupRole) -> Result<fi_addr_t> {
        let mut state = self.lock();
        if state.numbers.contains_key(&name) {
            return Err(Error::ALREADY);
        }
        let number = state.groups.insert(JoinedGroup::new(name, part));
        state.numbers.insert(name, number);
        Ok(MULTICAST_ADDR | fi_addr_t::from(number))
    }

    /// Continues to join a group: queries and notifies all peers. `joined` is called when joining
    /// is complete, with a lock held, unless the group is left before.
    pub(crate) fn begin(&self, addr: fi_addr_t, joined: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let Some(group) = state.groups.get_mut(addr as u32) else { return };
        group.joined = Some(Box::new(joined));
        for peer in self.av.indices() {
            group.introduce(peer).for_each(|word| self.say(peer, word, group.name));
        }
        group.settle();
    }

    /// Leaves a group. When this returns its `joined` is not called any more.
    pub(crate) fn leave(&self, addr: fi_addr_t) {
        let mut state = self.lock();
        let Some(group) = state.groups.remove(addr as u32) else { return };
        state.numbers.remove(&group.name);
        if group.part.receives {
            for peer in self.av.indices() {
                self.say(peer, Word::Out, group.name);
            }
        }
    }

    /// Drops all groups, because the endpoint is closed.
    pub(crate) fn close(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }

    /// Returns the members to send a message to. Fails with -FI_EAGAIN while the membership of a
    /// peer is unknown, and with -FI_EINVAL if the endpoint does not send to this group.
    pub(crate) fn members(&self, addr: fi_addr_t) -> Result<Vec<fi_addr_t>> {
        let mut state = self.lock();
        let group = state.groups.get_mut(addr as u32).filter(|group| group.part.sends);
        let group = group.ok_or(Error::INVAL)?;
        for peer in std::mem::take(&mut group.gone) {
            group.asked.insert(peer);
            self.say(peer, Word::Ask, group.name);
        }
        if group.asked.is_empty() {
            Ok(group.members.iter().copied().collect())
        } else {
            Err(Error::AGAIN)
        }
    }

    /// Sends a notice soon. Any lock may be held.
    fn say(&self, peer: fi_addr_t, word: Word, group: GroupAddr) {
        self.send(peer, word, group, |_| {});
    }

    /// Sends a notice like [`say`](Self::say); `over` is called when it was sent, or could not
    /// be.
    fn send(
        &self,
        peer: fi_addr_t,
        word: Word,
        group: GroupAddr,
        over: impl Fn(&Self) + Send + Sync + 'static,
    ) {
        let groups = self.me.clone();
        let notice = GroupNotice { word, port: self.own_port, group };
        self.notices.send(peer, notice.write(), move |result| {
            let Some(groups) = groups.upgrade() else { return };
            over(&groups);
            if result.is_err() {
                groups.unreachable(peer, word, group);
            }
        });
    }

    /// Sends an answer to a peer like [`say`](Self::say), unless [`MAX_ANSWERS`] answers to this
    /// peer are unsent.
    fn answer(&self, state: &mut GroupsState, peer: fi_addr_t, word: Word, group: GroupAddr) {
        let answers = state.answers.entry(peer).or_default();
        if *answers >= MAX_ANSWERS {
            return;
        }
        *answers += 1;
        self.send(peer, word, group, move |groups| {
            let mut state = groups.lock();
            if let Some(answers) = state.answers.get_mut(&peer) {
                *answers -= 1;
                if *answers == 0 {
                    state.answers.remove(&peer);
                }
            }
        });
    }

    /// Handles a failed notice: there will be no answer.
    fn unreachable(&self, peer: fi_addr_t, word: Word, group: GroupAddr) {
        let mut state = self.lock();
        let Some(group) = state.group(group) else { return };
        match word {
            Word::Ask => {
                group.asked.remove(&peer);
                group.gone.remove(&peer);
            }
            Word::Joined => drop(group.notified.remove(&peer)),
            _ => return,
        }
        group.settle();
    }

    /// Returns the index of the peer reported as `id` by completions.
    fn index_of(&self, id: fi_addr_t) -> Option<fi_addr_t> {
        if id == FI_ADDR_NOTAVAIL {
            return None;
        }
        let is = |index: fi_addr_t| self.av.id_of(index) == id;
        // As a rule the index is `id` itself.
        if is(id) { Some(id) } else { self.av.indices().into_iter().find(|index| is(*index)) }
    }

    /// Handles a peer whose connection ended or could not be established.
    fn lost(&self, name: fi_addr_t) {
        let Some(peer) = self.index_of(name) else { return };
        for (_, group) in self.lock().groups.iter_mut() {
            if group.members.remove(&peer) | group.asked.remove(&peer) {
                group.gone.insert(peer);
            }
            group.notified.remove(&peer);
            group.settle();
        }
    }

    /// Handles a notice from the peer reported as `from` by completions.
    fn noticed(&self, from: fi_addr_t, notice: &GroupNotice) {
        let GroupNotice { word, port, group: name } = *notice;
        let peer = self.index_of(from);
        let mut state = self.lock();
        let Some(peer) = peer else {
            return self.received_unknown(&mut state, word, port, name);
        };
        match word {
            Word::Ask => {
                let is_in = state.group(name).is_some_and(|group| group.part.receives);
                self.answer(&mut state, peer, if is_in { Word::In } else { Word::Out }, name);
            }
            Word::Joined => {
                if let Some(group) = state.group(name).filter(|group| group.part.sends) {
                    group.members.insert(peer);
                    group.asked.remove(&peer);
                    group.gone.remove(&peer);
                    group.settle();
                }
                self.answer(&mut state, peer, Word::Known, name);
            }
            Word::In | Word::Out => {
                let Some(group) = state.group(name) else { return };
                let was_asked = group.asked.remove(&peer);
                if word == Word::Out {
                    group.members.remove(&peer);
                    group.gone.remove(&peer);
                } else if was_asked {
                    group.members.insert(peer);
                }
                group.settle();
            }
            Word::Known => {
                let Some(group) = state.group(name) else { return };
                group.notified.remove(&peer);
                group.settle();
            }
            Word::Again => {
                let waiting: Vec<_> = state
                    .groups
                    .iter()
                    .flat_map(|(_, group)| {
                        let ask = group.asked.contains(&peer).then_some((Word::Ask, group.name));
                        let tell =
                            group.notified.contains(&peer).then_some((Word::Joined, group.name));
                        ask.into_iter().chain(tell)
                    })
                    .collect();
                for (word, name) in waiting {
                    self.answer(&mut state, peer, word, name);
                }
            }
        }
    }

    /// Handles a notice requiring an answer, of a peer not in the address vector at its arrival.
    /// The vector may have the peer by now.
    fn received_unknown(&self, state: &mut GroupsState, word: Word, port: u16, name: GroupAddr) {
        if !matches!(word, Word::Ask | Word::Joined) {
            return;
        }
        // The port is noted before looking: addresses that are inserted from now on are compared
        // with it.
        state.unknown_peers.insert(port);
        for peer in self.av.indices() {
            // `Again` is sent only once: a peer with messages from another address than its
            // inserted one stays unknown, regardless of repetitions.
            if self.av.get(peer).is_ok_and(|addr| addr.port() == port)
                && state.reminded.insert(peer)
            {
                self.answer(state, peer, Word::Again, name);
            }
        }
    }
}

impl av::AvObserverHandle for MulticastGroups {
    fn inserted(&self, index: fi_addr_t, addr: &Addr) {
        let mut state = self.lock();
        let known = state.unknown_peers.contains(&addr.port());
        for (_, group) in state.groups.iter_mut() {
            group.introduce(index).for_each(|word| self.say(index, word, group.name));
        }
        if known && state.reminded.insert(index) {
            self.say(index, Word::Again, GroupAddr { ip: [0; 16], port: 0 });
        }
    }

    fn removed(&self, index: fi_addr_t, _: &Addr) {
        let mut state = self.lock();
        state.groups.iter_mut().for_each(|(_, group)| group.forget(index));
        state.answers.remove(&index);
        state.reminded.remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(addr: &str) -> Result<GroupAddr> {
        GroupAddr::of(addr.parse().expect("an address"))
    }

    #[test]
    fn only_addresses_of_groups_name_groups_and_differ_by_both_parts() {
        let groups = ["239.0.0.1:7", "239.0.0.1:8", "239.0.0.2:7", "[ff02::1]:7", "224.0.0.1:0"];
        let names: HashSet<_> = groups.iter().map(|addr| name(addr).unwrap()).collect();
        assert_eq!(names.len(), groups.len());
        for other in ["127.0.0.1:7", "0.0.0.0:0", "255.255.255.255:7", "[fe80::1]:7", "[::]:7"] {
            assert_eq!(name(other), Err(Error::INVAL), "{other}");
        }
    }

    #[test]
    fn notices_are_these_bytes_and_come_out_as_they_went_in() {
        let group = name("239.1.2.3:258").unwrap();
        let mut reported = HashSet::new();
        for word in [Word::Ask, Word::In, Word::Out, Word::Joined, Word::Known, Word::Again] {
            let notice = GroupNotice { word, port: 0x0304, group };
            assert_eq!(GroupNotice::read(&notice.write()), Some(notice));
            reported.insert(notice.write());
        }
        assert_eq!(reported.len(), 6);
        let bytes = GroupNotice { word: Word::Joined, port: 0x0304, group }.write();
        assert_eq!(bytes[..8], [0, 4, 3, 4, 1, 2, 0, 0]);
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
    }

    #[test]
    fn malformed_group_notices_are_refused() {
        let good = GroupNotice { word: Word::Ask, port: 1, group: name("239.0.0.1:7").unwrap() };
        for at in 0..GroupNotice::LEN {
            for value in 0..=255 {
                let mut bytes = good.write();
                bytes[at] = value;
                let known = match at {
                    0 | 6 | 7 => value == 0,
                    1 => (1..=6).contains(&value),
                    _ => true,
                };
                assert_eq!(GroupNotice::read(&bytes).is_some(), known, "byte {at} is {value}");
            }
        }
        assert_eq!(GroupNotice::read(&[0xff; GroupNotice::LEN]), None);
    }
}

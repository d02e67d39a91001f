//! Multicast groups (fi_join of fi_cm(3)) of reliable endpoints, by replication: a
//! message to a group goes to each of its members, as one like any other.
//!
//! A [`MulticastGroups`] is an endpoint's side of it all. There is no directory: who is a member is
//! known from [`GroupNotice`]s among the endpoints that have each other in their address vectors.
//! An endpoint that joins to send asks them all, and keeps a list of those that say they are
//! members; whoever joins to receive tells them all, and those that send there keep it. Nothing
//! else is kept of what peers say, so that they cannot make us hold much. Joining is complete when
//! all have answered, or cannot be reached:
//!
//! | notice | is answered by |
//! |---|---|
//! | `Ask`: are you a member? | `In` or `Out` |
//! | `Joined`: I am one from now on | `Known` |
//! | `Out`: I am none any more | – |
//! | `Again`: now I know you; what did you say? | all that is not answered |
//!
//! One that does not have the asker in its vector cannot answer. It remembers the port
//! that the asker says it has, and sends `Again` when an address with it is inserted.
//!
//! A member whose connection ends is none any more. Whether it has become one again it is
//! asked before the next message goes to the group. So is everybody whose address is
//! inserted after the group was joined. Until they have answered no message can be sent
//! to it (-FI_EAGAIN), which keeps the order of all messages to a peer.
//!
//! Notices have [`MULTICAST_TAG`], which is that of no collective operation. A provider sends
//! none to a peer that has not said, when they connected, that it knows them
//! (-FI_EOPNOTSUPP, [`is_group_notice`](crate::later::is_group_notice)): that one is in no group.
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::av::{self, Av};
use crate::error::{Error, Result};
use crate::later::Later;
use crate::notices::{NoticeLine, Port};
use crate::reserved::{MULTICAST_ADDR, MULTICAST_TAG};
use crate::slab::Slab;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The most answers to one peer that it has not taken yet; what it says beyond that is
/// not answered.
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

/// What a notice says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Ask = 1,
    In,
    Out,
    Joined,
    Known,
    Again,
}

/// A notice, as peers send it to each other: in network order the word, the port of the
/// sender, that of the group, zeros, and the address of the group.
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

    /// Reads a notice; none if it says nothing that we know.
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

/// How an endpoint takes part in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupRole {
    /// The endpoint sends to the group.
    pub sends: bool,
    /// The endpoint receives what is sent to the group.
    pub receives: bool,
}

/// A group that the endpoint has joined. Peers are known by their indices.
struct JoinedGroup {
    name: GroupAddr,
    part: GroupRole,
    /// If the endpoint sends: the members it sends to, and peers that were asked whether they
    /// are members (`asked`).
    members: BTreeSet<fi_addr_t>,
    asked: HashSet<fi_addr_t>,
    /// Members whose connection ended, to be asked again before the next message.
    gone: HashSet<fi_addr_t>,
    /// If the endpoint receives: peers that were told that it does, and have not confirmed that
    /// yet.
    told: HashSet<fi_addr_t>,
    /// Called once when all peers have answered for the first time, which completes joining.
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
            told: HashSet::new(),
            joined: None,
        }
    }

    /// Completes joining if no peer's answer is awaited any more. Called with the lock held, so
    /// that the group exists while `joined` runs.
    fn settle(&mut self) {
        if self.asked.is_empty()
            && self.told.is_empty()
            && let Some(joined) = self.joined.take()
        {
            joined();
        }
    }

    /// Forgets a peer that was removed from the address vector.
    fn forget(&mut self, peer: fi_addr_t) {
        self.members.remove(&peer);
        self.asked.remove(&peer);
        self.gone.remove(&peer);
        self.told.remove(&peer);
        self.settle();
    }

    /// The notices that a peer is to get when it is asked and told for the first time.
    fn introduce(&mut self, peer: fi_addr_t) -> impl Iterator<Item = Word> + use<> {
        let ask = self.part.sends && self.asked.insert(peer);
        let tell = self.part.receives && self.told.insert(peer);
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
    /// Ports of peers that asked or told something before the address vector had them.
    strangers: HashSet<u16>,
    /// Peers that got `Again` since, because the address vector has them now.
    reminded: HashSet<fi_addr_t>,
    /// How many answers to each peer are not sent yet; at most [`MAX_ANSWERS`].
    answers: HashMap<fi_addr_t, usize>,
}

impl GroupsState {
    fn group(&mut self, name: GroupAddr) -> Option<&mut JoinedGroup> {
        let number = *self.numbers.get(&name)?;
        self.groups.get_mut(number)
    }
}

impl MulticastGroups {
    /// Makes the room of an endpoint that has this address vector and listens at `own_port`, and
    /// begins to hear notices. No lock may be held.
    pub(crate) fn new(
        port: Weak<dyn Port>,
        later: Arc<Later>,
        lane: usize,
        av: Arc<Av>,
        own_port: u16,
    ) -> Arc<Self> {
        let notices = NoticeLine::new(port, later.clone(), lane, MULTICAST_TAG);
        let room = Arc::new_cyclic(|me| {
            let me = me.clone();
            Self { me, notices, av, own_port, state: Mutex::default() }
        });
        let weak = room.me.clone();
        let listener: Weak<dyn av::AvListener> = weak.clone();
        room.av.listen(listener);
        let of_ends = weak.clone();
        later.listen(lane, move |name, _| {
            if let Some(room) = of_ends.upgrade() {
                room.lost(name);
            }
        });
        room.notices.listen(move |from, bytes| {
            if let (Some(room), Some(notice)) = (weak.upgrade(), GroupNotice::read(bytes)) {
                room.noticed(from, &notice);
            }
        });
        room
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

    /// Goes on joining a group: asks and tells all peers. `joined` is called when joining is
    /// complete, with a lock held, unless the group is left before.
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

    /// The members to send a message to. -FI_EAGAIN while a peer has not said whether it is one
    /// of them; -FI_EINVAL if the endpoint does not send to this group.
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
        let room = self.me.clone();
        let notice = GroupNotice { word, port: self.own_port, group };
        self.notices.send(peer, notice.write(), move |result| {
            let Some(room) = room.upgrade() else { return };
            over(&room);
            if result.is_err() {
                room.unreachable(peer, word, group);
            }
        });
    }

    /// Sends a notice like [`say`](Self::say) that answers a peer, unless [`MAX_ANSWERS`]
    /// answers to that peer are waiting.
    fn answer(&self, state: &mut GroupsState, peer: fi_addr_t, word: Word, group: GroupAddr) {
        let answers = state.answers.entry(peer).or_default();
        if *answers >= MAX_ANSWERS {
            return;
        }
        *answers += 1;
        self.send(peer, word, group, move |room| {
            let mut state = room.lock();
            if let Some(answers) = state.answers.get_mut(&peer) {
                *answers -= 1;
                if *answers == 0 {
                    state.answers.remove(&peer);
                }
            }
        });
    }

    /// Handles a notice that could not be sent: no answer to it will come.
    fn unreachable(&self, peer: fi_addr_t, word: Word, group: GroupAddr) {
        let mut state = self.lock();
        let Some(group) = state.group(group) else { return };
        match word {
            Word::Ask => {
                group.asked.remove(&peer);
                group.gone.remove(&peer);
            }
            Word::Joined => drop(group.told.remove(&peer)),
            _ => return,
        }
        group.settle();
    }

    /// The index of the peer for which completions report `id`.
    fn index_of(&self, id: fi_addr_t) -> Option<fi_addr_t> {
        if id == FI_ADDR_NOTAVAIL {
            return None;
        }
        let is = |index: fi_addr_t| self.av.id_of(index) == id;
        // As a rule the index is `id` itself.
        if is(id) { Some(id) } else { self.av.indices().into_iter().find(|index| is(*index)) }
    }

    /// Handles a peer whose connection ended or could not be made.
    fn lost(&self, name: fi_addr_t) {
        let Some(peer) = self.index_of(name) else { return };
        for (_, group) in self.lock().groups.iter_mut() {
            if group.members.remove(&peer) | group.asked.remove(&peer) {
                group.gone.insert(peer);
            }
            group.told.remove(&peer);
            group.settle();
        }
    }

    /// Handles a notice from the peer for which completions report `from`.
    fn noticed(&self, from: fi_addr_t, notice: &GroupNotice) {
        let GroupNotice { word, port, group: name } = *notice;
        let peer = self.index_of(from);
        let mut state = self.lock();
        let Some(peer) = peer else {
            return self.heard_stranger(&mut state, word, port, name);
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
                group.told.remove(&peer);
                group.settle();
            }
            Word::Again => {
                let waiting: Vec<_> = state
                    .groups
                    .iter()
                    .flat_map(|(_, group)| {
                        let ask = group.asked.contains(&peer).then_some((Word::Ask, group.name));
                        let tell = group.told.contains(&peer).then_some((Word::Joined, group.name));
                        ask.into_iter().chain(tell)
                    })
                    .collect();
                for (word, name) in waiting {
                    self.answer(&mut state, peer, word, name);
                }
            }
        }
    }

    /// Handles a notice of a peer that the address vector did not have when it came, and that
    /// expects an answer. The vector may have the peer by now.
    fn heard_stranger(&self, state: &mut GroupsState, word: Word, port: u16, name: GroupAddr) {
        if !matches!(word, Word::Ask | Word::Joined) {
            return;
        }
        // The port is noted before looking: addresses that are inserted from now on are compared
        // with it.
        state.strangers.insert(port);
        for peer in self.av.indices() {
            // `Again` is sent only once: a peer whose messages come from another address than it
            // is inserted with stays a stranger, whatever it repeats.
            if self.av.get(peer).is_ok_and(|addr| addr.port() == port)
                && state.reminded.insert(peer)
            {
                self.answer(state, peer, Word::Again, name);
            }
        }
    }
}

impl av::AvListener for MulticastGroups {
    fn inserted(&self, index: fi_addr_t, addr: &Addr) {
        let mut state = self.lock();
        let known = state.strangers.contains(&addr.port());
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
        let mut said = HashSet::new();
        for word in [Word::Ask, Word::In, Word::Out, Word::Joined, Word::Known, Word::Again] {
            let notice = GroupNotice { word, port: 0x0304, group };
            assert_eq!(GroupNotice::read(&notice.write()), Some(notice));
            said.insert(notice.write());
        }
        assert_eq!(said.len(), 6);
        let bytes = GroupNotice { word: Word::Joined, port: 0x0304, group }.write();
        assert_eq!(bytes[..8], [0, 4, 3, 4, 1, 2, 0, 0]);
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
    }

    #[test]
    fn what_says_nothing_that_is_known_is_no_notice() {
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

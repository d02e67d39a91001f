//! Unit tests of `endpoint`.
use super::*;
use crate::abi::fi_addr_t;
use crate::addr::Addr;
use crate::api::TxAttr;
use crate::info::InfoBuf;
use crate::lock::Lock;
use std::sync::Mutex;

/// Engine recording its calls.
#[derive(Debug)]
struct RecordingEngine {
    done: Mutex<Vec<String>>,
    eps: Mutex<u32>,
    receives: Lock<Receives>,
    copy: bool,
}

impl Default for RecordingEngine {
    fn default() -> Self {
        let matcher = RxMatcher::new(false, false, 77);
        let receives = Lock::new(Receives { matcher, asked: Vec::new() });
        Self { done: Mutex::default(), eps: Mutex::default(), receives, copy: false }
    }
}

/// Form of a waiting message in the matching engine, common to all endpoints.
#[derive(Debug)]
struct Nothing;

impl UnexpectedBody for Nothing {
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn cost(&self, _len: usize) -> usize {
        0
    }
    const ONE_LOCK: bool = true;
}

#[derive(Debug)]
struct Receives {
    matcher: RxMatcher<Nothing>,
    /// Endpoints queried for their matching engine.
    asked: Vec<u32>,
}

impl PostsReceives for Receives {
    type Buffered = Nothing;

    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<Nothing> {
        self.asked.push(ep);
        &mut self.matcher
    }
    fn matcher_if_open(&mut self, _ep: u32) -> Option<&mut RxMatcher<Nothing>> {
        None
    }
    fn post_tag(&mut self, _ep: u32, _op: &RecvOp) {}
    fn look(&mut self) {}
    fn match_message(&mut self, _matched: super::super::rx_matcher::MatchedMessage) {}
}

impl RecordingEngine {
    fn note(&self, line: impl Into<String>) {
        self.done.lock().unwrap().push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.done.lock().unwrap())
    }
}

impl AvObserver for RecordingEngine {
    fn name_inserted(&self, _ep: u32, _name: fi_addr_t, _addr: &Addr) {}
    fn name_identified(&self, _ep: u32, _name: fi_addr_t, _id: fi_addr_t) {}
    fn name_removed(&self, _ep: u32, _name: fi_addr_t) {}
}

impl RdmEngine for RecordingEngine {
    type Identity = RdmAttr;
    type InternalOps = ();
    type State = Receives;

    fn state(&self) -> Guard<'_, Receives> {
        self.receives.lock()
    }
    fn add(&self, _identity: RdmAttr) -> u32 {
        let mut eps = self.eps.lock().unwrap();
        *eps += 1;
        *eps
    }
    fn set_context_index(&self, ep: u32, context_index: ContextIndex) {
        self.note(format!("{ep} sends as {}", context_index.to(0).tx));
    }
    fn set_fid(&self, ep: u32, _fid: FidPtr) {
        self.note(format!("fid {ep}"));
    }
    fn enable(&self, ep: &RdmEndpoint<Self>, _: &Bindings, srx: Option<u32>) -> Result {
        self.note(format!("enable {} {srx:?}", ep.id));
        Ok(())
    }
    fn enable_contexts(&self, eps: &[u32], _bindings: &Bindings) -> Result {
        self.note(format!("enable {eps:?}"));
        Ok(())
    }
    fn bind_tx(&self, ep: u32, _bindings: &Bindings) {
        self.note(format!("bind tx {ep}"));
    }
    fn bind_rx(&self, ep: u32, _bindings: &Bindings) {
        self.note(format!("bind rx {ep}"));
    }
    fn bound_late(&self, ep: u32, _bindings: &Bindings) -> Result {
        self.note(format!("late {ep}"));
        Ok(())
    }
    fn become_context(&self, _ep: u32, _attr: &ContextAttr) {}
    fn close(&self, ep: u32) {
        self.note(format!("close {ep}"));
    }
    fn close_tx(&self, ep: u32) {
        self.note(format!("close {ep} Transmit"));
    }
    fn close_rx(&self, ep: u32) {
        self.note(format!("close {ep} Receive"));
    }
    fn is_copy(&self) -> bool {
        self.copy
    }
    fn tx_left(&self, ep: u32) -> usize {
        ep as usize
    }
    fn send(self: &Arc<Self>, _ep: &RdmEndpoint<Self>, _op: SendOp, _tagged: bool) -> Result {
        Ok(())
    }
    fn read(self: &Arc<Self>, _ep: &RdmEndpoint<Self>, _op: ReadOp) -> Result {
        Ok(())
    }
    fn write(self: &Arc<Self>, _ep: &RdmEndpoint<Self>, _op: WriteOp) -> Result {
        Ok(())
    }
    fn atomic(self: &Arc<Self>, _ep: &RdmEndpoint<Self>, _op: AtomicOp) -> Result {
        Ok(())
    }
    fn max_atomic(_operation: Operation) -> usize {
        9
    }
    fn max_atomic_bytes() -> usize {
        9
    }
    fn getname(&self, ep: u32) -> Result<Vec<u8>> {
        Ok(vec![ep as u8])
    }
    fn setname(&self, _ep: u32, _name: &[u8]) -> Result {
        Ok(())
    }
}

const TX: ContextAttr = ContextAttr::Tx(TxAttr {
    caps: 0,
    op_flags: 0,
    msg_order: 0,
    inject_size: 0,
    size: 1,
    iov_limit: 1,
    rma_iov_limit: 1,
});

fn rx() -> ContextAttr {
    ContextAttr::Rx(RxAttr::default())
}

fn scalable(engine: &Arc<RecordingEngine>, tx: usize, rx: usize) -> RdmEndpoint<RecordingEngine> {
    let mut info = InfoBuf::new().unwrap();
    info.edit_ep(|ep| (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (tx, rx));
    let identity = RdmAttr::default();
    RdmEndpoint::scalable(engine.clone(), identity, info.as_ref()).unwrap()
}

#[test]
fn the_contexts_of_one_index_are_one_endpoint_of_the_engine_and_each_closes_by_itself() {
    let engine = Arc::new(RecordingEngine::default());
    let bindings = Bindings::default();
    let sep = scalable(&engine, 2, 1);
    assert_eq!(engine.take(), ["1 sends as 0", "2 sends as 1"]);
    let (send, recv) = (sep.context(0, &TX).unwrap(), sep.context(0, &rx()).unwrap());
    assert_eq!((send.id, recv.id), (1, 1));
    assert_eq!(sep.context(1, &rx()).err(), Some(Error::INVAL));
    assert_eq!(sep.context(0, &TX).err(), Some(Error::BUSY));
    assert_eq!(send.context(0, &TX).err(), Some(Error::INVAL));

    for ep in [&sep, &send, &recv] {
        ep.enable(&bindings, None).unwrap();
    }
    assert_eq!(engine.take(), ["enable [1, 2]", "bind tx 1", "bind rx 1"]);
    assert_eq!(sep.bound_late(&bindings), Err(Error::OPBADSTATE));
    recv.bound_late(&bindings).unwrap();

    // The receives of the engine's endpoint are the receive context's, and so is its fid.
    for ep in [&sep, &send, &recv] {
        ep.opened(FidPtr(std::ptr::null_mut()));
    }
    send.cancel(Context::NULL, false).unwrap();
    recv.cancel(Context::NULL, false).unwrap();
    assert_eq!(engine.take(), ["bind rx 1", "fid 1"]);
    assert_eq!(engine.state().asked, [1], "the transmit context has nothing to cancel");

    send.close();
    let again = sep.context(0, &TX).unwrap();
    again.close();
    recv.close();
    sep.close();
    let closed = ["close 1 Transmit", "close 1 Transmit", "close 1 Receive", "close 1", "close 2"];
    assert_eq!(engine.take(), closed);
}

#[test]
fn a_shared_receive_context_is_shared_within_one_engine_and_has_no_address() {
    let (engine, other) =
        (Arc::new(RecordingEngine::default()), Arc::new(RecordingEngine::default()));
    let (bindings, attr) = (Bindings::default(), RdmAttr::default());
    let srx = RdmEndpoint::shared_rx(engine.clone(), attr.clone(), ());
    let ep = RdmEndpoint::new(engine.clone(), attr.clone(), ());
    let unknown_peer = RdmEndpoint::new(other, attr, ());
    ep.enable(&bindings, Some(&srx)).unwrap();
    assert_eq!(engine.take(), ["enable 2 Some(1)"]);
    assert_eq!(unknown_peer.enable(&bindings, Some(&srx)), Err(Error::INVAL));
    assert_eq!(srx.enable(&bindings, Some(&srx)), Err(Error::INVAL));
    assert_eq!((srx.getname(), ep.getname()), (Err(Error::NOSYS), Ok(vec![2])));
    assert_eq!((ep.size_left(true), ep.size_left(false)), (Ok(2), Err(Error::NOSYS)));
}

#[test]
fn options_are_numbers_of_the_right_size_or_refused() {
    let engine = Arc::new(RecordingEngine::default());
    let attr = RdmAttr::default();
    let srx = RdmEndpoint::shared_rx(engine.clone(), attr.clone(), ());
    let ep = RdmEndpoint::new(engine.clone(), attr, ());
    const SIZE: usize = size_of::<usize>();
    let mut value = [0; 16];
    assert_eq!(ep.getopt(FI_OPT_MIN_MULTI_RECV, &mut value), Ok(SIZE));
    assert_eq!(usize::from_ne_bytes(value[..SIZE].try_into().unwrap()), 77);
    assert_eq!(ep.getopt(FI_OPT_MIN_MULTI_RECV, &mut value[..SIZE / 2]), Err(Error::TOOSMALL));
    assert_eq!(ep.getopt(FI_OPT_MAX_ATOMIC_SIZE, &mut value), Ok(SIZE));
    for (ep, name) in [(&srx, FI_OPT_MAX_ATOMIC_SIZE), (&ep, FI_OPT_BUFFERED_MIN), (&ep, -7)] {
        assert_eq!(ep.getopt(name, &mut value), Err(Error::NOPROTOOPT));
        assert_eq!(ep.setopt(name, &value[..SIZE]), Err(Error::NOPROTOOPT));
    }
    assert_eq!(ep.setopt(FI_OPT_MIN_MULTI_RECV, &value[..SIZE / 2]), Err(Error::INVAL));
    ep.setopt(FI_OPT_MIN_MULTI_RECV, &512usize.to_ne_bytes()).unwrap();
    assert_eq!(engine.state().matcher.queues.min_multi_recv(), 512);
}

#[test]
fn a_forked_child_closes_nothing_of_its_parents() {
    let engine = Arc::new(RecordingEngine { copy: true, ..RecordingEngine::default() });
    let ep = RdmEndpoint::new(engine.clone(), RdmAttr::default(), ());
    ep.close();
    scalable(&engine, 1, 1).close();
    assert_eq!(engine.take(), ["2 sends as 0"]);
}

//! Unit tests of `av`.
use super::*;
use std::ffi::CString;

fn ip(text: &str) -> Addr {
    Addr::Ip(text.parse().unwrap())
}

fn open() -> Arc<Av> {
    let format = abi::FI_SOCKADDR_IN as u32;
    // SAFETY: no peer.
    unsafe {
        let parent = Parent::new(Arc::new(()), Arc::default());
        Av::open(parent, format, AvSharing::Never, None, std::ptr::null_mut())
    }
    .unwrap()
}

#[test]
fn an_address_keeps_its_index_until_removed_as_often_as_inserted() {
    let av = open();
    let (a, b) = (ip("10.0.0.1:1"), ip("10.0.0.2:1"));
    let first = av.insert(a.clone()).unwrap();
    assert_eq!(av.insert(a.clone()), Ok(first));
    let second = av.insert(b.clone()).unwrap();
    assert_ne!(first, second);
    av.remove(first).unwrap();
    assert_eq!(av.get(first), Ok(a.clone()));
    av.remove(first).unwrap();
    assert_eq!(av.get(first), Err(Error::INVAL));
    assert_eq!((av.find(a), av.find(b)), (FI_ADDR_NOTAVAIL, second));
    assert_eq!(av.remove(first), Err(Error::INVAL));
}

/// Emulated knowledge of an endpoint about one address.
#[derive(Default)]
struct AddrObserved(Mutex<(Option<fi_addr_t>, bool)>);

impl AvObserverHandle for AddrObserved {
    fn inserted(&self, index: fi_addr_t, _: &Addr) {
        let mut seen = self.0.lock().unwrap();
        seen.1 |= seen.0.replace(index).is_some();
    }
    fn removed(&self, index: fi_addr_t, _: &Addr) {
        std::thread::yield_now();
        let mut seen = self.0.lock().unwrap();
        seen.1 |= seen.0.take() != Some(index);
    }
    fn identified(&self, _: fi_addr_t, _: fi_addr_t) {}
}

#[test]
fn observers_get_insert_and_remove_events_in_order() {
    let (av, seen) = (open(), Arc::new(AddrObserved::default()));
    let listener: Weak<dyn AvObserverHandle> =
        Arc::downgrade(&(seen.clone() as Arc<dyn AvObserverHandle>));
    av.listen(listener);
    let addr = ip("10.0.0.1:1");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let index = av.insert(addr.clone()).unwrap();
                    av.remove(index).unwrap();
                }
            });
        }
    });
    assert_eq!(*seen.0.lock().unwrap(), (None, false));
}

/// Endpoint querying the user id of a new address.
struct AvUserIdObserver(Arc<Av>, Mutex<Vec<fi_addr_t>>);

impl AvObserverHandle for AvUserIdObserver {
    fn inserted(&self, index: fi_addr_t, _: &Addr) {
        self.1.lock().unwrap().push(self.0.id_of(index));
    }
    fn removed(&self, _: fi_addr_t, _: &Addr) {}
    fn identified(&self, _: fi_addr_t, id: fi_addr_t) {
        self.1.lock().unwrap().push(id);
    }
}

#[test]
fn address_with_user_id_is_never_reported_by_its_index() {
    let av = open();
    let observer = Arc::new(AvUserIdObserver(av.clone(), Mutex::default()));
    av.listen(Arc::downgrade(&(observer.clone() as Arc<dyn AvObserverHandle>)));
    let sin = |port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([10, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let (c, null) = ((&raw const av.c).cast_mut(), std::ptr::null_mut());
    let addrs = [sin(1), sin(2), sin(1)];
    let mut out = [7, 8, 9];
    // SAFETY: three addresses, and room for three of what is asked for.
    let inserted =
        unsafe { insert(c, addrs.as_ptr().cast(), 3, out.as_mut_ptr(), abi::FI_AV_USER_ID, null) };
    assert_eq!((inserted, out), (3, [0, 1, 0]));
    assert_eq!(*observer.1.lock().unwrap(), [7, 8, 9]);
}

/// Endpoint looking up an address during the report of its removal.
struct LookingListener(Arc<Av>, Mutex<Option<Result<Addr>>>);

impl AvObserverHandle for LookingListener {
    fn inserted(&self, _: fi_addr_t, _: &Addr) {}
    fn removed(&self, index: fi_addr_t, _: &Addr) {
        *self.1.lock().unwrap() = Some(self.0.get(index));
    }
}

#[test]
fn address_under_removal_cannot_be_looked_up() {
    let av = open();
    let looks = Arc::new(LookingListener(av.clone(), Mutex::default()));
    av.listen(Arc::downgrade(&(looks.clone() as Arc<dyn AvObserverHandle>)));
    let index = av.insert(ip("10.0.0.1:1")).unwrap();
    av.remove(index).unwrap();
    assert_eq!(*looks.1.lock().unwrap(), Some(Err(Error::INVAL)));
}

#[test]
fn names_are_inserted_looked_up_and_written_as_addresses_are() {
    let format = abi::FI_ADDR_STR as u32;
    // SAFETY: numbers and null pointers.
    let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
    attr.flags = abi::FI_AV_USER_ID;
    let null = std::ptr::null_mut();
    // SAFETY: no peer.
    let av = unsafe {
        let parent = Parent::new(Arc::new(()), Arc::default());
        Av::open(parent, format, AvSharing::Never, Some(&mut attr), null)
    };
    let av = av.unwrap();
    let c = (&raw const av.c).cast_mut();
    let mut out = [70, 80, 90];
    let names = b"fi_shm://1:0:0\x002:0:0\x001:0:0\0";
    // SAFETY: three strings, and room for three of what is asked for.
    let inserted =
        unsafe { insert(c, names.as_ptr().cast(), 3, out.as_mut_ptr(), attr.flags, null) };
    assert_eq!((inserted, out), (3, [0, 1, 0]));
    assert_eq!((av.id_of(0), av.id_of(1)), (90, 80));
    let (mut buf, mut len) = ([0u8; 32], 32);
    // SAFETY: `buf` has that many bytes.
    assert_eq!(unsafe { lookup(c, 1, buf.as_mut_ptr().cast(), &raw mut len) }, 0);
    assert_eq!((&buf[..len], len), (&b"2:0:0\0"[..], 6));
    len = 32;
    // SAFETY: as above; a string.
    unsafe { straddr(c, names.as_ptr().cast(), buf.as_mut_ptr().cast(), &raw mut len) };
    assert_eq!(CStr::from_bytes_until_nul(&buf).unwrap(), c"fi_shm://1:0:0");
    // SAFETY: as above.
    let empty = unsafe { insert(c, c"".as_ptr().cast(), 1, out.as_mut_ptr(), 0, null) };
    assert_eq!((empty, out[0]), (0, FI_ADDR_NOTAVAIL));
}

/// Returns a name unique among tests.
fn unique_name() -> CString {
    CString::new(format!("ofi-av-{}-{:x}", std::process::id(), crate::sys::random())).unwrap()
}

/// Opens a vector of this name, as one of several processes would.
fn open_named(name: &CStr, flags: u64) -> Result<Arc<Av>> {
    // SAFETY: numbers and null pointers.
    let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
    (attr.name, attr.flags) = (name.as_ptr(), flags);
    let format = abi::FI_SOCKADDR_IN as u32;
    let parent = Parent::new(Arc::new(()), Arc::default());
    // SAFETY: no peer; the name outlives the call.
    let av = unsafe {
        Av::open(parent, format, AvSharing::ByName, Some(&mut attr), std::ptr::null_mut())
    }?;
    assert!(!attr.map_addr.is_null());
    Ok(av)
}

#[test]
fn named_av_shares_its_addresses_between_all_openers() {
    let name = unique_name();
    assert_eq!(open_named(&name, abi::FI_READ).err(), Some(Error::INVAL));
    let (a, b) = (ip("10.0.0.1:1"), ip("10.0.0.2:1"));
    let one = open_named(&name, 0).unwrap();
    assert_eq!(one.insert(a.clone()), Ok(0));
    let (two, reader) = (open_named(&name, 0).unwrap(), open_named(&name, abi::FI_READ).unwrap());
    assert_eq!((two.get(0), reader.get(0)), (Ok(a.clone()), Ok(a.clone())));
    assert_eq!((two.insert(a.clone()), two.insert(b.clone())), (Ok(0), Ok(1)));
    assert_eq!((one.find(b.clone()), reader.get(1)), (1, Ok(b.clone())));
    assert_eq!((reader.get(2), reader.indices()), (Err(Error::INVAL), vec![0, 1]));
    assert_eq!(
        (reader.insert(b.clone()), reader.remove(0)),
        (Err(Error::ACCES), Err(Error::ACCES))
    );
    // Each of two has inserted the first address.
    one.remove(0).unwrap();
    assert_eq!((one.get(0), reader.get(0)), (Ok(a.clone()), Ok(a.clone())));
    two.remove(0).unwrap();
    for av in [&one, &two, &reader] {
        assert_eq!(av.get(0), Err(Error::INVAL));
    }
    assert_eq!((one.remove(0), two.remove(9)), (Err(Error::INVAL), Err(Error::INVAL)));
    // An index is never another address's.
    assert_eq!((one.insert(a.clone()), two.find(a.clone())), (Ok(2), 2));
    assert_eq!((two.insert(a), reader.indices()), (Ok(2), vec![1, 2]));
}

#[test]
fn avs_of_different_names_and_unnamed_avs_share_nothing() {
    let names = [unique_name(), unique_name()];
    let vectors = names.each_ref().map(|name| open_named(name, 0).unwrap());
    vectors[0].insert(ip("10.0.0.1:1")).unwrap();
    assert_eq!((vectors[0].indices(), vectors[1].indices()), (vec![0], vec![]));
    let av = open();
    av.insert(ip("10.0.0.3:1")).unwrap();
    assert_eq!(vectors[0].indices(), [0]);
}

#[test]
fn av_name_is_refused_without_support_for_sharing() {
    let name = unique_name();
    // SAFETY: numbers and null pointers.
    let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
    let open = |sharing, format: u64, attr: &mut fi_av_attr| {
        let parent = Parent::new(Arc::new(()), Arc::default());
        // SAFETY: no peer; the name outlives the call.
        unsafe { Av::open(parent, format as u32, sharing, Some(attr), std::ptr::null_mut()) }
    };
    attr.flags = abi::FI_READ;
    let (ip, string) = (abi::FI_SOCKADDR_IN as u64, abi::FI_ADDR_STR as u64);
    assert_eq!(open(AvSharing::ByName, ip, &mut attr).err(), Some(Error::INVAL));
    assert_eq!(open(AvSharing::Never, ip, &mut attr).err(), Some(Error::INVAL));
    (attr.name, attr.flags) = (name.as_ptr(), 0);
    assert_eq!(open(AvSharing::Never, ip, &mut attr).err(), Some(Error::NOSYS));
    assert_eq!(open(AvSharing::ByName, string, &mut attr).err(), Some(Error::NOSYS));
    assert!(attr.map_addr.is_null());
    attr.map_addr = std::ptr::without_provenance_mut(0x2000_0000);
    assert!(open(AvSharing::ByName, ip, &mut attr).is_ok());
    assert_eq!(attr.map_addr.addr(), 0x2000_0000);
}

#[test]
fn observers_get_other_processes_addresses_on_the_next_call() {
    let name = unique_name();
    let (one, two) = (open_named(&name, 0).unwrap(), open_named(&name, abi::FI_READ).unwrap());
    let seen = Arc::new(AddrObserved::default());
    two.listen(Arc::downgrade(&(seen.clone() as Arc<dyn AvObserverHandle>)));
    let addr = ip("10.0.0.1:1");
    one.insert(addr.clone()).unwrap();
    // An endpoint that looks up an address holds locks.
    assert_eq!((two.find(addr), seen.0.lock().unwrap().0), (0, None));
    two.observe_others();
    two.observe_others();
    assert_eq!(*seen.0.lock().unwrap(), (Some(0), false));
}

#[test]
fn address_reinserted_after_remote_removal_gets_a_new_index() {
    let name = unique_name();
    let (one, two) = (open_named(&name, 0).unwrap(), open_named(&name, 0).unwrap());
    let seen = Arc::new(AddrObserved::default());
    two.listen(Arc::downgrade(&(seen.clone() as Arc<dyn AvObserverHandle>)));
    let addr = ip("10.0.0.1:1");
    one.insert(addr.clone()).unwrap();
    two.observe_others();
    one.remove(0).unwrap();
    assert_eq!(two.insert(addr), Ok(1));
    assert_eq!(*seen.0.lock().unwrap(), (Some(1), false));
}

#[test]
fn torn_record_is_read_again() {
    let name = unique_name();
    let one = open_named(&name, 0).unwrap();
    one.insert(ip("10.0.0.1:1")).unwrap();
    let path = std::path::Path::new("/dev/shm").join(name.to_str().unwrap());
    let whole = std::fs::read(&path).unwrap();
    let mut torn = whole.clone();
    torn[whole.len() - 1] = 1;
    std::fs::write(&path, &torn).unwrap();
    let two = open_named(&name, abi::FI_READ).unwrap();
    assert_eq!((two.get(0), two.indices()), (Err(Error::INVAL), vec![]));
    std::fs::write(&path, &whole).unwrap();
    assert_eq!((two.get(0), two.find(ip("10.0.0.1:1"))), (Ok(ip("10.0.0.1:1")), 0));
    assert_eq!(two.indices(), [0]);
}

#[test]
fn unreachable_addresses_are_refused() {
    let av = open();
    assert_eq!(av.insert(ip("0.0.0.0:1")), Err(Error::INVAL));
    assert_eq!(av.insert(ip("10.0.0.1:0")), Err(Error::INVAL));
}

#[test]
fn symmetric_names_count_up() {
    assert_eq!(nth_name("10.0.0.9", 3).unwrap(), "10.0.0.12");
    assert_eq!(nth_name("node08", 3).unwrap(), "node11");
    assert_eq!(nth_name("5000", 2).unwrap(), "5002");
    assert_eq!(nth_name("localhost", 0).unwrap(), "localhost");
    assert!(nth_name("localhost", 1).is_err());
}

//! Description of the network card behind an info (fi_nic(3)).
use super::owned::{InfoBuf, copy_bytes, zeroed};
use super::tostr;
use crate::abi::{
    FI_CLASS_NIC, FI_DUP, c_enum, fi_bus_type, fi_link_state, fi_ops, fi_pci_attr, fid, fid_nic,
};
use crate::boundary::ffi_guard;
use crate::error::{Error, Result};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::ffi::CString;

/// Network card, for [`InfoBuf::set_nic`]. Unknown texts are `None`,
/// numbers 0.
#[derive(Clone, Debug, Default)]
pub struct Nic {
    /// The device.
    pub device: NicDevice,
    /// Address on the PCI bus, if it is on one.
    pub pci: Option<Pci>,
    /// The card's link.
    pub link: NicLink,
}

/// A device (struct fi_device_attr).
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each is the member of its name, see fi_nic(3)")]
pub struct NicDevice {
    pub name: Option<CString>,
    pub device_id: Option<CString>,
    pub device_version: Option<CString>,
    pub vendor_id: Option<CString>,
    pub driver: Option<CString>,
    pub firmware: Option<CString>,
}

/// A place on the PCI bus (struct fi_pci_attr).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the member of its name, see fi_nic(3)")]
pub struct Pci {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

impl Pci {
    /// Parses the kernel's name of a device, like `0000:3b:00.1`.
    pub fn parse(name: &str) -> Option<Self> {
        let (domain, rest) = name.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let small = |text| u8::from_str_radix(text, 16).ok();
        Some(Self {
            domain_id: u16::from_str_radix(domain, 16).ok()?,
            bus_id: small(bus)?,
            device_id: small(device)?,
            function_id: small(function)?,
        })
    }
}

/// A link (struct fi_link_attr).
#[derive(Clone, Debug)]
pub struct NicLink {
    /// In the words of its kind of network.
    pub address: Option<CString>,
    /// The link's MTU in bytes.
    pub mtu: usize,
    /// The link's speed in bits per second.
    pub speed: usize,
    /// State of the link.
    pub state: c_enum<fi_link_state>,
    /// "Ethernet", "InfiniBand".
    pub network_type: Option<CString>,
}

impl Default for NicLink {
    fn default() -> Self {
        let state = fi_link_state::FI_LINK_UNKNOWN.into();
        Self { address: None, mtu: 0, speed: 0, state, network_type: None }
    }
}

impl InfoBuf {
    /// Sets the card of the info. Fails if there is no memory.
    pub fn set_nic(&mut self, nic: &Nic) -> Result {
        let card = nic.to_raw()?;
        // SAFETY: the structure was made for this info.
        unsafe { self.replace_nic(card) };
        Ok(())
    }
}

static OPS: fi_ops =
    fi_ops { control: Some(control), tostr: Some(append_text), ..crate::fid::ops(close) };

impl Nic {
    /// Returns the card as a structure for C, freed with its info. All of its memory is C's:
    /// providers of other builds copy the structures and texts, keep the table of operations, and
    /// have the copy closed through it.
    pub(super) fn to_raw(&self) -> Result<*mut fid_nic> {
        let card = zeroed::<fid_nic>()?.as_ptr();
        // SAFETY: new, zeroed, and not shared yet.
        let result = unsafe {
            (*card).fid = fid {
                fclass: FI_CLASS_NIC as usize,
                context: ptr::null_mut(),
                ops: (&raw const OPS).cast_mut(),
            };
            self.fill(&mut *card)
        };
        if let Err(error) = result {
            // SAFETY: each part is C's memory, or missing.
            unsafe { free(card) };
            return Err(error);
        }
        Ok(card)
    }

    /// Adds the structures and texts to a card without any.
    fn fill(&self, card: &mut fid_nic) -> Result {
        card.device_attr = zeroed()?.as_ptr();
        card.bus_attr = zeroed()?.as_ptr();
        card.link_attr = zeroed()?.as_ptr();
        // SAFETY: just allocated; all zeros is a value of each of them.
        let (device, bus, link) =
            unsafe { (&mut *card.device_attr, &mut *card.bus_attr, &mut *card.link_attr) };
        let of = &self.device;
        for (to, text) in [
            (&mut device.name, &of.name),
            (&mut device.device_id, &of.device_id),
            (&mut device.device_version, &of.device_version),
            (&mut device.vendor_id, &of.vendor_id),
            (&mut device.driver, &of.driver),
            (&mut device.firmware, &of.firmware),
            (&mut link.address, &self.link.address),
            (&mut link.network_type, &self.link.network_type),
        ] {
            if let Some(text) = text {
                *to = copy_bytes(text.to_bytes_with_nul())?.cast();
            }
        }
        bus.bus_type = fi_bus_type::FI_BUS_UNSPEC.into();
        if let Some(Pci { domain_id, bus_id, device_id, function_id }) = self.pci {
            bus.bus_type = fi_bus_type::FI_BUS_PCI.into();
            bus.attr.pci = fi_pci_attr { domain_id, bus_id, device_id, function_id };
        }
        (link.mtu, link.speed) = (self.link.mtu, self.link.speed);
        link.state = self.link.state;
        Ok(())
    }

    /// Returns the content of a card.
    ///
    /// # Safety
    /// Its pointers are null or those of a live card.
    unsafe fn from_raw(card: &fid_nic) -> Self {
        let mut nic = Self::default();
        // SAFETY: by this function's contract; a bus address is valid for a PCI bus.
        unsafe {
            let text =
                |text: *mut c_char| (!text.is_null()).then(|| CStr::from_ptr(text).to_owned());
            if let Some(of) = card.device_attr.as_ref() {
                nic.device = NicDevice {
                    name: text(of.name),
                    device_id: text(of.device_id),
                    device_version: text(of.device_version),
                    vendor_id: text(of.vendor_id),
                    driver: text(of.driver),
                    firmware: text(of.firmware),
                };
            }
            if let Some(bus) = card.bus_attr.as_ref() {
                if bus.bus_type == fi_bus_type::FI_BUS_PCI {
                    let fi_pci_attr { domain_id, bus_id, device_id, function_id } = bus.attr.pci;
                    nic.pci = Some(Pci { domain_id, bus_id, device_id, function_id });
                }
            }
            if let Some(of) = card.link_attr.as_ref() {
                nic.link = NicLink {
                    address: text(of.address),
                    mtu: of.mtu,
                    speed: of.speed,
                    state: of.state,
                    network_type: text(of.network_type),
                };
            }
        }
        nic
    }
}

/// Frees a card.
///
/// # Safety
/// It and its parts are C's memory or missing, and not in use any more.
unsafe fn free(card: *mut fid_nic) {
    // SAFETY: by this function's contract.
    unsafe {
        let fid_nic { device_attr, bus_attr, link_attr, .. } = *card;
        if let Some(device) = device_attr.as_ref() {
            let ids = [device.device_id, device.device_version, device.vendor_id];
            let names = [device.name, device.driver, device.firmware];
            ids.into_iter().chain(names).for_each(|text| libc::free(text.cast()));
        }
        if let Some(link) = link_attr.as_ref() {
            [link.address, link.network_type].into_iter().for_each(|text| libc::free(text.cast()));
        }
        libc::free(device_attr.cast());
        libc::free(bus_attr.cast());
        libc::free(link_attr.cast());
        libc::free(card.cast());
    }
}

// SAFETY of the entry points below: each is reachable only through the table of a card of `to_raw`,
// or of a copy of it by another provider, that `close` has not freed.

unsafe extern "C" fn close(nic: *mut fid) -> c_int {
    ffi_guard("fi_close(nic)", || -> Result {
        if nic.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above.
        unsafe { free(nic.cast()) };
        Ok(())
    })
}

unsafe extern "C" fn control(nic: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    ffi_guard("fi_control(nic)", || {
        if nic.is_null() || arg.is_null() {
            return Err(Error::INVAL);
        }
        if command != FI_DUP {
            return Err(Error::NOSYS);
        }
        // SAFETY: see above; FI_DUP takes a place for a nic.
        unsafe { arg.cast::<*mut fid_nic>().write(Nic::from_raw(&*nic.cast()).to_raw()?) };
        Ok(())
    })
}

/// Appends its text to the one in the buffer, up to its size.
unsafe extern "C" fn append_text(nic: *const fid, buf: *mut c_char, len: usize) -> c_int {
    ffi_guard("tostr(nic)", || -> Result {
        if nic.is_null() || buf.is_null() || len == 0 {
            return Err(Error::INVAL);
        }
        // SAFETY: see above; the buffer has `len` bytes, of which those up to
        // the first zero are a text.
        unsafe {
            let text = tostr::nic(&*nic.cast::<fid_nic>());
            let there = libc::strnlen(buf, len);
            let n = text.len().min((len - there).saturating_sub(1));
            if there < len {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), buf.add(there), n);
                buf.add(there + n).write(0);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Nic {
        Nic {
            device: NicDevice { name: Some(c"mlx5_0".into()), ..NicDevice::default() },
            pci: Some(Pci { domain_id: 0, bus_id: 0x3b, device_id: 1, function_id: 2 }),
            link: NicLink {
                mtu: 4096,
                speed: 1_000_000_000,
                state: fi_link_state::FI_LINK_UP.into(),
                network_type: Some(c"Ethernet".into()),
                ..NicLink::default()
            },
        }
    }

    #[test]
    fn a_card_is_copied_with_its_info_and_lives_as_long() {
        let mut info = InfoBuf::new().unwrap();
        info.set_nic(&card()).unwrap();
        let copy = info.as_ref().to_owned().unwrap();
        let text = tostr::info(info.as_ref());
        drop(info);
        assert_eq!(tostr::info(copy.as_ref()), text);
        for line in [
            "    nic:\n        fi_device_attr:\n            name: mlx5_0\n",
            "            device_id: (null)\n",
            "                bus_id: 59\n",
            "            speed: 1000000000\n            state: FI_LINK_UP\n",
            "            network_type: Ethernet\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let nic = copy.as_ref().nic().unwrap();
        // SAFETY: its attributes are those of a live card.
        unsafe {
            assert_eq!((*nic.link_attr).mtu, 4096);
            assert!((*nic.link_attr).address.is_null());
            assert_eq!(core::ffi::CStr::from_ptr((*nic.device_attr).name), c"mlx5_0");
        }
        // Another one takes its place.
        let mut copy = copy;
        copy.set_nic(&Nic::default()).unwrap();
        assert!(tostr::info(copy.as_ref()).contains("bus_type: FI_BUS_UNKNOWN"));
        // An info of another provider's that stands on the card.
        let mut above = InfoBuf::new().unwrap();
        let mut below = InfoBuf::new().unwrap();
        below.set_nic(&card()).unwrap();
        above.copy_nic(below.as_ref()).unwrap();
        drop(below);
        assert!(tostr::info(above.as_ref()).contains("name: mlx5_0"));
        above.copy_nic(InfoBuf::new().unwrap().as_ref()).unwrap();
        assert!(above.as_ref().nic().is_none());
    }

    /// Copies a card as providers of other builds do: each structure and text, with the table.
    ///
    /// # Safety
    /// It is live.
    unsafe fn copy_parts(card: *const fid_nic) -> *mut fid_nic {
        // SAFETY: by this function's contract; the copies are as long as the originals.
        unsafe {
            let copy = |from: *const c_void, len: usize| {
                let to = libc::malloc(len);
                ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), len);
                to
            };
            let text = |text: &mut *mut c_char| {
                if !text.is_null() {
                    *text = libc::strdup(*text);
                }
            };
            let to = copy(card.cast(), size_of::<fid_nic>()).cast::<fid_nic>();
            (*to).device_attr =
                copy((*card).device_attr.cast(), size_of_val(&*(*card).device_attr)).cast();
            (*to).bus_attr = copy((*card).bus_attr.cast(), size_of_val(&*(*card).bus_attr)).cast();
            (*to).link_attr =
                copy((*card).link_attr.cast(), size_of_val(&*(*card).link_attr)).cast();
            let (device, link) = (&mut *(*to).device_attr, &mut *(*to).link_attr);
            [&mut device.name, &mut device.device_id, &mut device.device_version]
                .into_iter()
                .for_each(text);
            [&mut device.vendor_id, &mut device.driver, &mut device.firmware]
                .into_iter()
                .for_each(text);
            [&mut link.address, &mut link.network_type].into_iter().for_each(text);
            to
        }
    }

    #[test]
    fn copy_of_a_card_by_another_provider_is_copied_printed_and_closed() {
        let card = card().to_raw().unwrap();
        let mut again: *mut fid_nic = ptr::null_mut();
        // SAFETY: live cards, each closed once.
        unsafe {
            let copy = copy_parts(card);
            assert_eq!(close(card.cast()), 0);
            assert_eq!(control(copy.cast(), FI_DUP, (&raw mut again).cast()), 0);
            assert_eq!(tostr::nic(&*copy), tostr::nic(&*again));
            assert!(tostr::nic(&*copy).contains("name: mlx5_0"));
            assert_eq!((close(copy.cast()), close(again.cast())), (0, 0));
        }
    }

    #[test]
    fn its_text_is_appended_and_cut_off_to_the_buffer() {
        let nic = card().to_raw().unwrap();
        for len in [4, 5, 9, 40] {
            let mut buf = vec![b'x'; 41];
            buf[..4].copy_from_slice(b"abc\0");
            // SAFETY: a live card and a buffer of at least that length.
            assert_eq!(unsafe { append_text(nic.cast(), buf.as_mut_ptr().cast(), len) }, 0);
            let text = core::ffi::CStr::from_bytes_until_nul(&buf).unwrap().to_bytes();
            assert!(text.starts_with(b"abc") && text.len() == len - 1, "{len}");
            assert_eq!(buf[len], b'x');
        }
        // SAFETY: a live card, closed once.
        assert_eq!(unsafe { close(nic.cast()) }, 0);
    }

    #[test]
    fn pci_address_is_parsed_and_other_names_are_refused() {
        let address = Pci::parse("0001:3b:1f.7").unwrap();
        assert_eq!((address.domain_id, address.bus_id), (1, 0x3b));
        assert_eq!((address.device_id, address.function_id), (0x1f, 7));
        assert!(
            ["", "rxe0", "0000:00", "0000:00:zz.0"].iter().all(|name| Pci::parse(name).is_none())
        );
    }
}

//! Description of the network card behind an info (fi_nic(3)).
use super::owned::InfoBuf;
use super::tostr;
use crate::abi::{
    FI_CLASS_NIC, FI_DUP, fi_bus_attr, fi_bus_attr__attr, fi_bus_type, fi_device_attr,
    fi_link_attr, fi_link_state, fi_ops, fi_pci_attr, fid, fid_nic,
};
use crate::boundary::ffi_guard;
use crate::error::{Error, Result};
use core::ffi::{c_char, c_int, c_void};
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
    pub state: fi_link_state,
    /// "Ethernet", "InfiniBand".
    pub network_type: Option<CString>,
}

impl Default for NicLink {
    fn default() -> Self {
        let state = fi_link_state::FI_LINK_UNKNOWN;
        Self { address: None, mtu: 0, speed: 0, state, network_type: None }
    }
}

impl InfoBuf {
    /// Sets the card of the info.
    pub fn set_nic(&mut self, nic: Nic) {
        // SAFETY: the structure was made for this info.
        unsafe { self.replace_nic(nic.into_raw()) };
    }
}

/// Structures for C, and their texts.
#[repr(C)]
struct Owned {
    c: fid_nic,
    device: fi_device_attr,
    bus: fi_bus_attr,
    link: fi_link_attr,
    nic: Nic,
}

static OPS: fi_ops =
    fi_ops { control: Some(control), tostr: Some(append_text), ..crate::fid::ops(close) };

impl Nic {
    /// Passes the card to C, freeing it with its info.
    pub(super) fn into_raw(self) -> *mut fid_nic {
        let text = |text: &Option<CString>| {
            text.as_ref().map_or(ptr::null_mut(), |text| text.as_ptr().cast_mut())
        };
        let NicDevice { name, device_id, device_version, vendor_id, driver, firmware } =
            &self.device;
        let device = fi_device_attr {
            name: text(name),
            device_id: text(device_id),
            device_version: text(device_version),
            vendor_id: text(vendor_id),
            driver: text(driver),
            firmware: text(firmware),
        };
        // SAFETY: all zeros is a place on the bus, and so is every other value.
        let attr = unsafe { core::mem::zeroed::<fi_bus_attr__attr>() };
        let mut bus = fi_bus_attr { bus_type: fi_bus_type::FI_BUS_UNSPEC.into(), attr };
        if let Some(Pci { domain_id, bus_id, device_id, function_id }) = self.pci {
            bus.bus_type = fi_bus_type::FI_BUS_PCI.into();
            bus.attr.pci = fi_pci_attr { domain_id, bus_id, device_id, function_id };
        }
        let link = fi_link_attr {
            address: text(&self.link.address),
            mtu: self.link.mtu,
            speed: self.link.speed,
            state: self.link.state.into(),
            network_type: text(&self.link.network_type),
        };
        let fid = fid {
            fclass: FI_CLASS_NIC as usize,
            context: ptr::null_mut(),
            ops: (&raw const OPS).cast_mut(),
        };
        let (device_attr, bus_attr, link_attr) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let c = fid_nic { fid, device_attr, bus_attr, link_attr, prov_attr: ptr::null_mut() };
        // The texts stay where they are when the card is moved.
        let owned = Box::into_raw(Box::new(Owned { c, device, bus, link, nic: self }));
        // SAFETY: just created, and not shared yet.
        unsafe {
            (*owned).c.device_attr = &raw mut (*owned).device;
            (*owned).c.bus_attr = &raw mut (*owned).bus;
            (*owned).c.link_attr = &raw mut (*owned).link;
        }
        owned.cast()
    }
}

// SAFETY of the entry points below: each is reachable only through the table of
// a card that `into_raw` made and `close` has not freed.

unsafe extern "C" fn close(nic: *mut fid) -> c_int {
    ffi_guard("fi_close(nic)", || -> Result {
        if nic.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above.
        drop(unsafe { Box::from_raw(nic.cast::<Owned>()) });
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
        unsafe { arg.cast::<*mut fid_nic>().write((*nic.cast::<Owned>()).nic.clone().into_raw()) };
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
                speed: 100_000_000_000,
                state: fi_link_state::FI_LINK_UP,
                network_type: Some(c"Ethernet".into()),
                ..NicLink::default()
            },
        }
    }

    #[test]
    fn a_card_is_copied_with_its_info_and_lives_as_long() {
        let mut info = InfoBuf::new().unwrap();
        info.set_nic(card());
        let copy = info.as_ref().to_owned().unwrap();
        let text = tostr::info(info.as_ref());
        drop(info);
        assert_eq!(tostr::info(copy.as_ref()), text);
        for line in [
            "    nic:\n        fi_device_attr:\n            name: mlx5_0\n",
            "            device_id: (null)\n",
            "                bus_id: 59\n",
            "            speed: 100000000000\n            state: FI_LINK_UP\n",
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
        copy.set_nic(Nic::default());
        assert!(tostr::info(copy.as_ref()).contains("bus_type: FI_BUS_UNKNOWN"));
        // An info of another provider's that stands on the card.
        let mut above = InfoBuf::new().unwrap();
        let mut below = InfoBuf::new().unwrap();
        below.set_nic(card());
        above.copy_nic(below.as_ref()).unwrap();
        drop(below);
        assert!(tostr::info(above.as_ref()).contains("name: mlx5_0"));
        above.copy_nic(InfoBuf::new().unwrap().as_ref()).unwrap();
        assert!(above.as_ref().nic().is_none());
    }

    #[test]
    fn its_text_is_appended_and_cut_off_to_the_buffer() {
        let nic = card().into_raw();
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

//! Files of plug-ins: their defects, and their loading.
use crate::hook_mapping::{HookMapping, OtherSide};
use crate::log;
use crate::provider::LoadedProvider;
use core::mem;
#[cfg(target_pointer_width = "32")]
use libc::{ELFCLASS32 as CLASS, Elf32_Ehdr as FileHeader, Elf32_Phdr as ProgramHeader};
#[cfg(target_pointer_width = "64")]
use libc::{ELFCLASS64 as CLASS, Elf64_Ehdr as FileHeader, Elf64_Phdr as ProgramHeader};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ofi::abi::{FI_ENOMEM, fi_provider};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reason for the rejection of a plug-in.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Name of a missing library it is linked to.
    Needs(String),
    /// The provider found nothing usable on this host.
    Nothing,
    /// There was no memory to load it.
    NoMemory,
    /// Something is wrong with the plug-in.
    Unusable(String),
}

/// Opens a plug-in for good.
pub(crate) fn open(file: &Path) -> core::result::Result<LoadedProvider, Refused> {
    type Entry = unsafe extern "C" fn() -> *mut fi_provider;
    if let Some(defect) = defect_of(file) {
        return Err(Refused::Unusable(defect));
    }
    // Before any of its code runs: it may end the process.
    log::info(format_args!("loading plug-in {}", file.display()));
    // SAFETY: loading code runs it; that is what a plug-in is, and where
    // plug-ins come from is for the administrator and the user to say.
    unsafe {
        *libc::__errno_location() = 0;
        let library = Library::open(Some(file), RTLD_NOW | RTLD_LOCAL).map_err(|error| {
            // The loader's text need not say it: there may be no memory for the text, either.
            match *libc::__errno_location() {
                FI_ENOMEM => Refused::NoMemory,
                _ => Refused::by_loader(file, root_cause(&error)),
            }
        })?;
        let entry = match library.get::<Entry>(b"fi_prov_ini\0") {
            Ok(entry) => *entry,
            Err(_) => return Err(Refused::Unusable("it has no fi_prov_ini".to_owned())),
        };
        let side = |name: &[u8]| library.get::<OtherSide>(name).ok().map(|side| *side);
        let sides = match (side(b"ofi_hook_inner\0"), side(b"ofi_hook_outer\0")) {
            (Some(inner), Some(outer)) => Some(HookMapping { inner, outer }),
            _ => None,
        };
        // Plug-ins of this library have it. Others leave any number of a failed call in `errno`.
        let reports = library.get::<*const u8>(b"ofi_errno_of_fi_prov_ini\0").is_ok();
        // From here on its code may have left traces.
        core::mem::forget(library);
        *libc::__errno_location() = 0;
        match entry() {
            raw if raw.is_null() && reports && *libc::__errno_location() == FI_ENOMEM => {
                Err(Refused::NoMemory)
            }
            raw if raw.is_null() => Err(Refused::Nothing),
            raw => {
                let prov = LoadedProvider::new(raw).map_err(Refused::Unusable)?;
                Ok(prov.with_sides(sides))
            }
        }
    }
}

/// ELF number of this processor architecture, or 0 if there is none here.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    libc::EM_X86_64
} else if cfg!(target_arch = "aarch64") {
    libc::EM_AARCH64
} else if cfg!(target_arch = "riscv64") {
    libc::EM_RISCV
} else if cfg!(target_arch = "powerpc64") {
    libc::EM_PPC64
} else if cfg!(target_arch = "s390x") {
    libc::EM_S390
} else if cfg!(target_arch = "arm") {
    libc::EM_ARM
} else if cfg!(target_arch = "x86") {
    libc::EM_386
} else {
    0
};

/// Returns the defect of a file unreported by the loader, or reported incorrectly:
///
/// - A part to be mapped is behind the end of the file, as after an interrupted copy. Accessing such
///   a mapping ends the process.
/// - The file is for another processor architecture. For the loader there is no such file.
fn defect_of(file: &Path) -> Option<String> {
    /// Offsets of the fields of an ELF file's header and of its program headers.
    const MACHINE_AT: usize = mem::offset_of!(FileHeader, e_machine);
    const PHOFF: usize = mem::offset_of!(FileHeader, e_phoff);
    const PHENTSIZE: usize = mem::offset_of!(FileHeader, e_phentsize);
    const PHNUM: usize = mem::offset_of!(FileHeader, e_phnum);
    const OFFSET: usize = mem::offset_of!(ProgramHeader, p_offset);
    const FILESZ: usize = mem::offset_of!(ProgramHeader, p_filesz);
    const ENCODING: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
    let u16_at = |of: &[u8], at: usize| Some(u16::from_ne_bytes(*of.get(at..)?.first_chunk()?));
    let u32_at = |of: &[u8], at: usize| Some(u32::from_ne_bytes(*of.get(at..)?.first_chunk()?));
    // Offsets and sizes have the width of an address.
    let word_at =
        |of: &[u8], at: usize| Some(usize::from_ne_bytes(*of.get(at..)?.first_chunk()?) as u64);
    let cut_off = || Some("the file is cut off".to_owned());
    let file = File::open(file).ok()?;
    let envelope = file.metadata().ok().filter(|envelope| envelope.is_file())?;
    let mut header = [0; size_of::<FileHeader>()];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF")
        || header[libc::EI_CLASS] != CLASS
        || header[libc::EI_DATA] != ENCODING
    {
        return None;
    }
    let machine = u16_at(&header, MACHINE_AT)?;
    if MACHINE != 0 && machine != MACHINE {
        return Some(format!(
            "it is for another processor architecture (ELF machine {machine} instead of {MACHINE})"
        ));
    }
    let entry = usize::from(u16_at(&header, PHENTSIZE)?);
    let mut table = vec![0; entry * usize::from(u16_at(&header, PHNUM)?)];
    if file.read_exact_at(&mut table, word_at(&header, PHOFF)?).is_err() {
        return cut_off();
    }
    let beyond = |segment: &[u8]| {
        let end = word_at(segment, OFFSET)?.checked_add(word_at(segment, FILESZ)?);
        Some(u32_at(segment, 0)? == libc::PT_LOAD && end.is_none_or(|end| end > envelope.len()))
    };
    let is_cut_off = table.chunks_exact(entry.max(1)).any(|segment| beyond(segment) == Some(true));
    if is_cut_off { cut_off() } else { None }
}

impl Refused {
    /// Returns the reason in the loader's error message for a file.
    fn by_loader(file: &Path, why: String) -> Self {
        // One of the loader's own messages for it ends with the text of the error code.
        let no_memory = std::io::Error::from_raw_os_error(FI_ENOMEM).to_string();
        let no_memory = no_memory.split(" (os error").next().unwrap_or_default();
        if why.contains(no_memory) || why.contains("out of memory") {
            return Self::NoMemory;
        }
        // For a missing dependency of a plug-in it names the library, else the plug-in.
        match why.split_once(": cannot open shared object file: No such file") {
            Some((library, _)) if Path::new(library) != file => Self::Needs(library.to_owned()),
            _ => Self::Unusable(why),
        }
    }
}

fn root_cause(error: &libloading::Error) -> String {
    // The loader's own message; the error's text only repeats which call failed.
    std::error::Error::source(error).unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_not_blamed_on_the_plug_in() {
        let by = |why: &str| Refused::by_loader(Path::new("/p/libverbs-fi.so"), why.to_owned());
        let missing = ": cannot open shared object file: No such file or directory";
        let needs = by(&format!("libibverbs.so.1{missing}"));
        assert!(matches!(needs, Refused::Needs(library) if library == "libibverbs.so.1"));
        for why in [&format!("/p/libverbs-fi.so{missing}"), "/p/libverbs-fi.so: invalid ELF header"]
        {
            assert!(matches!(by(why), Refused::Unusable(text) if text == *why));
        }
    }

    #[test]
    fn truncated_plug_in_file_is_recognized() {
        let whole = std::env::current_exe().unwrap();
        assert!(defect_of(&whole).is_none() && defect_of(Path::new("/")).is_none());
        let bytes = std::fs::read(&whole).unwrap();
        let cut = std::env::temp_dir().join(format!("ofi-cut-off-{}", std::process::id()));
        for (len, expected) in [(0, false), (40, false), (100, true), (5000, true)] {
            std::fs::write(&cut, &bytes[..len]).unwrap();
            let defect = defect_of(&cut).is_some_and(|text| text.contains("cut off"));
            assert_eq!(defect, expected, "{len} bytes");
        }
        std::fs::remove_file(&cut).unwrap();
    }

    #[test]
    fn file_for_another_processor_architecture_is_recognized() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = mem::offset_of!(FileHeader, e_machine);
        bytes[at..at + 2].copy_from_slice(&libc::EM_SPARCV9.to_ne_bytes());
        let foreign = std::env::temp_dir().join(format!("ofi-sparc-{}", std::process::id()));
        std::fs::write(&foreign, &bytes).unwrap();
        let defect = defect_of(&foreign);
        std::fs::remove_file(&foreign).unwrap();
        assert!(defect.is_some_and(|text| text.contains("ELF machine 43")));
    }

    #[test]
    fn file_without_a_plug_in_is_refused() {
        let refused = open(Path::new("/nonexistent-fi.so"));
        assert!(matches!(refused, Err(Refused::Unusable(why)) if why.contains("nonexistent")));
    }
}

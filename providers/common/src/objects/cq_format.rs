//! Entry formats of completion queues (fi_cq(3)).
use crate::abi::{fi_cq_data_entry, fi_cq_entry, fi_cq_msg_entry, fi_cq_tagged_entry};
use crate::completion::Completion;
use core::ffi::c_void;
use core::mem::offset_of;

/// Entry format of a queue: the number of words of 64 bits of a completion in an entry, with pointers of
/// that size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Format {
    Context = 1,
    Msg = 3,
    Data = 5,
    Tagged = 6,
}

impl Format {
    /// Writes one entry in this format.
    ///
    /// # Safety
    /// `buf` has space for more than `index` entries of this format.
    #[inline(always)]
    pub(super) unsafe fn store(self, buf: *mut c_void, index: usize, entry: &Completion) {
        // SAFETY: by this function's contract; each is a beginning of a completion, and C
        // aligns its entries.
        unsafe {
            if self == Self::Tagged {
                return copy_beginning::<fi_cq_tagged_entry>(entry, buf, index);
            }
            // Entries with pointers of 32 bits have other sizes.
            if cfg!(not(target_pointer_width = "64")) {
                return match self {
                    Self::Context => copy_beginning::<fi_cq_entry>(entry, buf, index),
                    Self::Msg => copy_beginning::<fi_cq_msg_entry>(entry, buf, index),
                    _ => copy_beginning::<fi_cq_data_entry>(entry, buf, index),
                };
            }
            // Word for word: of a choice among four a table of jumps would be made.
            let to = buf.cast::<u64>().add(index * self as usize);
            let copy = |at: usize, words| {
                let from = (&raw const *entry).cast::<u64>();
                to.add(at).copy_from_nonoverlapping(from.add(at), words);
            };
            copy(0, 1);
            if self >= Self::Msg {
                copy(1, 2);
                if self >= Self::Data {
                    copy(3, 2);
                }
            }
        }
    }
}

/// Entry type of the application whose fields are the first ones of a completion.
///
/// # Safety
/// This must hold for every type implementing the trait.
unsafe trait BeginsCompletion: Copy {}
macro_rules! begin_completion {
    ($($entry:ident { $($field:ident: $of:ident),* })*) => { $(
        $(const _: () =
            assert!(offset_of!($entry, $field) == offset_of!(Completion, $of));)*
        const _: () = assert!(size_of::<$entry>() <= offset_of!(Completion, src));
        // SAFETY: the fields are where a completion has them, which was just looked at.
        unsafe impl BeginsCompletion for $entry {}
    )* };
}
begin_completion! {
    fi_cq_entry { op_context: context }
    fi_cq_msg_entry { op_context: context, flags: flags, len: len }
    fi_cq_data_entry { op_context: context, flags: flags, len: len, buf: buf, data: data }
    fi_cq_tagged_entry { op_context: context, flags: flags, len: len, buf: buf, data: data, tag: tag }
}

/// Copies the part of a completion that an entry contains.
///
/// # Safety
/// `buf` has space for more than `index` entries, and is aligned for them.
#[inline(always)]
unsafe fn copy_beginning<E: BeginsCompletion>(from: &Completion, buf: *mut c_void, index: usize) {
    // SAFETY: a completion begins with the fields of an entry; there is room by this
    // function's contract.
    unsafe { buf.cast::<E>().add(index).write(*(&raw const *from).cast::<E>()) }
}

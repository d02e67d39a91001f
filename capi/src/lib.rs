//! `libfabric.so.1`: the exported symbols, and nothing else.
#[macro_use]
mod symver;
mod calls;

extern "C" fn version() -> u32 {
    (ofi::abi::FI_MAJOR_VERSION << 16 | ofi::abi::FI_MINOR_VERSION) as u32
}

versioned! {
    fi_version { "@@FABRIC_1.0" => version }
}

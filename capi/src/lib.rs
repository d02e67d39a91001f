//! `libfabric.so.1`: the exported symbols, and nothing else.
//!
//! Every function of the library with every version it ever had. The implementations are in
//! [`ofi_core::entry`]. The two variadic ones are called from `variadic.c`, because stable Rust
//! cannot define such functions.
#[macro_use]
mod symver;
mod calls;

use core::ffi::{c_char, c_int};
use ofi::abi::{c_enum, fi_log_level, fi_log_subsys, fi_param_type, fi_provider};
use ofi_core::{entry, registry};

versioned! {
    fi_getinfo {
        "@FABRIC_1.0" => entry::getinfo_1_0,
        "@FABRIC_1.1" => entry::getinfo_1_1,
        "@FABRIC_1.2" => entry::getinfo_1_2,
        "@FABRIC_1.3" => entry::getinfo_1_3,
        "@FABRIC_1.7" => entry::getinfo_1_7,
        "@FABRIC_1.8" => entry::getinfo_1_8,
        "@FABRIC_1.9" => entry::getinfo_1_9,
        "@@FABRIC_1.10" => entry::getinfo_1_10,
    }
    fi_dupinfo {
        "@FABRIC_1.0" => entry::dupinfo_1_0,
        "@FABRIC_1.1" => entry::dupinfo_1_1,
        "@FABRIC_1.2" => entry::dupinfo_1_2,
        "@FABRIC_1.3" => entry::dupinfo_1_3,
        "@FABRIC_1.7" => entry::dupinfo_1_7,
        "@FABRIC_1.8" => entry::dupinfo_1_8,
        "@FABRIC_1.9" => entry::dupinfo_1_9,
        "@@FABRIC_1.10" => entry::dupinfo_1_10,
    }
    fi_freeinfo {
        "@FABRIC_1.0" => entry::freeinfo,
        "@FABRIC_1.1" => entry::freeinfo,
        "@FABRIC_1.2" => entry::freeinfo,
        "@FABRIC_1.3" => entry::freeinfo,
        "@FABRIC_1.7" => entry::freeinfo,
        "@FABRIC_1.8" => entry::freeinfo,
        "@FABRIC_1.9" => entry::freeinfo,
        "@@FABRIC_1.10" => entry::freeinfo,
    }
    fi_fabric {
        "@FABRIC_1.0" => entry::fabric_1_0,
        "@@FABRIC_1.1" => entry::fabric,
    }
    fi_fabric2 { "@@FABRIC_1.8" => entry::fabric2 }
    fi_open { "@@FABRIC_1.5" => entry::fi_open }
    fi_version { "@@FABRIC_1.0" => entry::fi_version }
    fi_strerror { "@@FABRIC_1.0" => entry::strerror }
    fi_tostr { "@@FABRIC_1.0" => entry::tostr }
    fi_tostr_r { "@@FABRIC_1.4" => entry::tostr_r }
    fi_log_enabled { "@@FABRIC_1.0" => entry::log_enabled }
    fi_log_ready { "@@FABRIC_1.6" => entry::log_ready }
    fi_log { "@@FABRIC_1.0" => ofi_variadic_log }
    fi_param_define { "@@FABRIC_1.0" => ofi_variadic_param_define }
    fi_param_get { "@@FABRIC_1.0" => entry::param_get }
    fi_getparams { "@@FABRIC_1.0" => entry::getparams }
    fi_freeparams { "@@FABRIC_1.0" => entry::freeparams }
}

// In variadic.c: they format their arguments and call the two below.
unsafe extern "C" {
    fn ofi_variadic_log(
        prov: *const fi_provider,
        level: c_enum<fi_log_level>,
        subsys: c_enum<fi_log_subsys>,
        func: *const c_char,
        line: c_int,
        fmt: *const c_char,
        ...
    );
    fn ofi_variadic_param_define(
        prov: *const fi_provider,
        name: *const c_char,
        kind: c_enum<fi_param_type>,
        fmt: *const c_char,
        ...
    ) -> c_int;
}

// Hidden, which a function that Rust gives a C name cannot be in a cdylib.
core::arch::global_asm!(
    ".pushsection .text.ofi_variadic,\"ax\",%progbits",
    ".globl ofi_log_text",
    ".hidden ofi_log_text",
    ".type ofi_log_text, %function",
    "ofi_log_text:",
    symver::jump!("ofi_log_text"),
    ".size ofi_log_text, . - ofi_log_text",
    ".popsection",
    f = sym entry::log_text,
);
core::arch::global_asm!(
    ".pushsection .text.ofi_variadic,\"ax\",%progbits",
    ".globl ofi_param_define_text",
    ".hidden ofi_param_define_text",
    ".type ofi_param_define_text, %function",
    "ofi_param_define_text:",
    symver::jump!("ofi_param_define_text"),
    ".size ofi_param_define_text, . - ofi_param_define_text",
    ".popsection",
    f = sym entry::param_define_text,
);

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        registry::resolve_own_path();
    }
    init
};

/// Runs when the process ends, or when the library is unloaded.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = {
    extern "C" fn fini() {
        registry::cleanup();
        ofi::heap::release();
    }
    fini
};

//! Fuzz targets parsing untrusted bytes.
#![no_main]
use libfuzzer_sys::fuzz_target;

mod address_text;
#[path = "../chosen.rs"]
mod chosen;
mod environment;
mod host_dump;
mod stats_page;
mod link_addr;
mod local_ring;
mod rail_frames;
mod rxd_packet;
mod rxm_packet;
mod sealed_datagram;
mod secret_frames;
mod sockaddr_bytes;
mod tcp_cm;
mod tcp_header;
mod trace_text;

fuzz_target!(
    init: chosen::choose(&[
        ("address_text", address_text::run),
        ("environment", environment::run),
        ("host_dump", host_dump::run),
        ("stats_page", stats_page::run),
        ("link_addr", link_addr::run),
        ("local_ring", local_ring::run),
        ("rail_frames", rail_frames::run),
        ("rxd_packet", rxd_packet::run),
        ("rxm_packet", rxm_packet::run),
        ("sealed_datagram", sealed_datagram::run),
        ("secret_frames", secret_frames::run),
        ("sockaddr_bytes", sockaddr_bytes::run),
        ("tcp_cm", tcp_cm::run),
        ("tcp_header", tcp_header::run),
        ("trace_text", trace_text::run),
    ]),
    |bytes: &[u8]| chosen::run(bytes)
);

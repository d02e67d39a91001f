//! Fuzz targets parsing untrusted bytes.
mod address_text;
mod environment;
mod host_dump;
mod link_addr;
mod local_ring;
mod rail_frames;
mod rxd_packet;
mod rxm_packet;
mod sealed_datagram;
mod secret_frames;
mod sockaddr_bytes;
mod stats_page;
mod tcp_cm;
mod tcp_header;
mod trace_text;

/// All targets, by name.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("address_text", address_text::run),
    ("environment", environment::run),
    ("host_dump", host_dump::run),
    ("link_addr", link_addr::run),
    ("local_ring", local_ring::run),
    ("rail_frames", rail_frames::run),
    ("rxd_packet", rxd_packet::run),
    ("rxm_packet", rxm_packet::run),
    ("sealed_datagram", sealed_datagram::run),
    ("secret_frames", secret_frames::run),
    ("sockaddr_bytes", sockaddr_bytes::run),
    ("stats_page", stats_page::run),
    ("tcp_cm", tcp_cm::run),
    ("tcp_header", tcp_header::run),
    ("trace_text", trace_text::run),
];

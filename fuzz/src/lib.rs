#![doc = include_str!("../README.md")]

pub mod media;
pub mod nbd;
pub mod seeds;
pub mod stream;

/// A check of any bytes.
pub type Check = fn(&[u8]);

/// All targets by name, the same as in `fuzz_targets/` and `seeds/`.
pub const TARGETS: &[(&str, Check)] = &[
    ("config", media::config),
    ("footer", media::footer),
    ("cache_device", media::cache_device),
    ("dram", media::dram),
    ("heartbeat", media::heartbeat),
    ("journal_frame", media::journal_frame),
    ("leaf_images", media::leaf_images),
    ("log_frame", media::log_frame),
    ("log_state", media::log_state),
    ("map_delta", media::map_delta),
    ("nbd_client", nbd::client),
    ("nbd_server", nbd::server),
    ("nbd_tls", nbd::tls),
    ("object_device", media::object_device),
    ("resume_token", stream::resume_token),
    ("segment_records", media::segment_records),
    ("send_stream", stream::send_stream),
    ("snapshot_records", media::snapshot_records),
    ("fingerprints", media::fingerprints),
    ("packed_block", media::packed_block),
    ("superblock", media::superblock),
    ("vhost_ring", forebay_vhost::check_ring),
];

//! What pools do with the blocks of sparse volumes: named by a property that is drawn.

/// Values of `dedup_index_size` that say what a pool does with its sparse volumes and clones: each
/// with the properties that they get.
pub const SERVICES: [(&str, &[(&str, &str)]); 5] = [
    (DEDUP_ON, &[("dedup", "on")]),
    (DEDUP_VERIFY, &[("dedup", "verify")]),
    (LZ4, &[("compression", "lz4")]),
    ("4M", &[("compression", "zstd-1"), ("dedup", "on")]),
    ("5M", &[("compression", "lz4"), ("dedup", "verify")]),
];
/// Sparse volumes and clones are compressed.
pub const LZ4: &str = "3M";
/// A pool whose `dedup_index_size` has this value de-duplicates its sparse volumes and clones.
pub const DEDUP_ON: &str = "1M";
/// As [`DEDUP_ON`]; contents are compared.
pub const DEDUP_VERIFY: &str = "2M";

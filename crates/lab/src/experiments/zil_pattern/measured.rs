//! What others measured at log devices of ZFS.

/// A recorded pattern.
pub(super) struct Measured {
    pub datasets: u32,
    pub writes: u64,
    /// Writes that do not start where the write before ended.
    pub random: u64,
    pub bytes: u64,
    /// Distance (sectors, a power of two up to twice as far), seeks ahead, seeks back.
    pub seeks: &'static [(u64, u64, u64)],
    /// Sectors of a write, writes; sizes that fewer than 1 % have are left out.
    pub sizes: &'static [(u64, u64)],
}

pub(super) const TRACE_SOURCE: &str =
    "blktrace of the log device of an OpenZFS 2.1.11 pool, queued writes in order";

/// The log device of OpenZFS 2.1.11 under one and five file systems, each with one client of the
/// same sizes as here: queued writes of the two traces, counted from the text of `blkparse`.
pub(super) const TRACES: [Measured; 2] = [
    Measured {
        datasets: 1,
        writes: 4_002,
        random: 3_702,
        bytes: 65_826_816,
        seeks: &[
            (8, 111, 0),
            (16, 36, 0),
            (32, 1_047, 0),
            (64, 1_772, 0),
            (128, 728, 0),
            (65_536, 1, 0),
            (131_072, 2, 2),
            (262_144, 2, 1),
        ],
        sizes: &[(8, 40), (16, 2_687), (24, 379), (40, 303), (72, 228), (128, 65), (136, 202)],
    },
    Measured {
        datasets: 5,
        writes: 10_325,
        random: 10_194,
        bytes: 170_225_664,
        seeks: &[
            (8, 46, 0),
            (16, 25, 0),
            (32, 321, 10),
            (64, 605, 149),
            (128, 463, 381),
            (256, 629, 403),
            (512, 227, 119),
            (1_024, 24, 20),
            (65_536, 4, 6),
            (131_072, 1_003, 1_020),
            (262_144, 1_340, 1_338),
            (524_288, 508, 508),
            (1_048_576, 524, 519),
            (2_097_152, 0, 2),
        ],
        sizes: &[(8, 137), (16, 6_871), (24, 991), (40, 785), (72, 619), (128, 162), (136, 511)],
    },
];

/// Random share in percent that the tables of the 2010 talk have, by datasets: least, mean, most.
pub(super) const TALK: [(u32, f64, f64, f64); 2] = [(1, 0.0, 1.5, 6.0), (5, 21.0, 38.85, 71.0)];

//! Errors of the format: which structure, and what is wrong with its bytes.

use std::fmt;

use forebay_units::{BlockAddr, FrameSeq, Lba, TxgId, VolumeId};

/// Why bytes are not a valid structure, or a structure cannot become bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// Which structure.
    pub what: &'static str,
    /// What is wrong with it.
    pub flaw: FormatFlaw,
}

impl FormatError {
    /// An error about `what`.
    #[must_use]
    pub fn new(what: &'static str, flaw: impl Into<FormatFlaw>) -> Self {
        Self { what, flaw: flaw.into() }
    }
}

/// What is wrong with a structure. Numbers are as they stand in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatFlaw {
    /// The bytes end too early.
    Truncated {
        /// Bytes that were expected.
        expected_bytes: usize,
        /// Bytes that are left.
        left_bytes: usize,
    },
    /// The structure has a fixed length, and the bytes another one.
    Length {
        /// The fixed length.
        expected_bytes: usize,
        /// The length of the bytes.
        found_bytes: usize,
    },
    /// The magic number is missing.
    NoMagic,
    /// The version is one that this program does not read.
    Version {
        /// The version that this program reads.
        expected: u32,
        /// The version in the bytes.
        found: u32,
    },
    /// The checksum differs.
    Checksum {
        /// The checksum in the bytes.
        stored: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// The checksum of a page differs.
    PageChecksum {
        /// The page.
        page: u32,
    },
    /// A string is not UTF-8.
    NotUtf8,
    /// An integer of variable length has more than 64 bits.
    WideInteger,
    /// A kind is unknown.
    UnknownKind {
        /// The kind.
        kind: u16,
    },
    /// Flags are unknown.
    UnknownFlags {
        /// The flags.
        flags: u16,
    },
    /// Reserved bytes are not zero.
    Reserved {
        /// The bytes as a number.
        found: u32,
    },
    /// The text is not the expected JSON.
    Json {
        /// The parser's answer.
        text: String,
    },
    /// The configuration does not fit its slot.
    ConfigTooLong {
        /// Bytes of the configuration.
        len_bytes: usize,
        /// Bytes of the slot.
        slot_bytes: u64,
    },
    /// A number is wider than an address.
    WideAddress {
        /// The number.
        raw: u64,
    },
    /// A segment has a number that no pool has.
    NoSegment {
        /// The number.
        segment: u64,
    },
    /// The log state in a superblock is too long.
    LogStateTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// The payload of a map journal frame is too long.
    PayloadTooLong {
        /// Its length.
        len_bytes: u32,
    },
    /// In a frame or the state of the log.
    Log(LogFlaw),
    /// In a segment's footer.
    Footer(FooterFlaw),
    /// In a record of the map.
    Map(MapFlaw),
}

/// What is wrong with a frame or the state of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFlaw {
    /// A log record has another amount of data than its range.
    RecordData {
        /// Blocks of data.
        data_blocks: u32,
        /// Blocks of the range.
        blocks: u32,
    },
    /// A log record reaches past any volume.
    RecordRange {
        /// The first block.
        lba: Lba,
        /// Blocks of the range.
        blocks: u32,
    },
    /// A log record is of a later group than its frame.
    RecordGroup {
        /// The record's group.
        record: TxgId,
        /// The highest group of the frame, by its header.
        frame: TxgId,
    },
    /// A log frame is too long, or too short for its records.
    FrameLength {
        /// Bytes of the frame.
        len_bytes: u32,
        /// Records of the frame.
        records: u16,
    },
    /// A log frame's data do not fill it.
    FrameData {
        /// Bytes of data.
        data_bytes: u64,
        /// Bytes of the frame.
        len_bytes: u32,
    },
    /// A log frame's watermark is not below its own number.
    Watermark {
        /// The watermark.
        watermark: FrameSeq,
        /// The frame.
        seq: FrameSeq,
    },
    /// A log frame is further ahead of the committed group than there are groups.
    CommittedGroup {
        /// The highest group of the frame.
        max_txg: TxgId,
        /// How many groups the committed one is behind it.
        ahead: u32,
    },
    /// The log state has more rings than a log can have.
    TooManyRings {
        /// Rings.
        rings: usize,
    },
    /// The log state's frame numbers contradict each other.
    FrameNumbers {
        /// The first frame of the log.
        tail: FrameSeq,
        /// The next frame.
        next: FrameSeq,
        /// The highest durable frame.
        watermark: FrameSeq,
    },
    /// The log state's limit of a frame is impossible.
    FrameLimit {
        /// The limit.
        max_frame_bytes: u32,
    },
    /// The log state lists a ring twice.
    DuplicateRing {
        /// The ring.
        ring: u8,
    },
    /// A ring's length, or the place where the log begins in it, is impossible.
    Ring {
        /// The ring.
        ring: u8,
        /// Where the log begins in it.
        tail_bytes: u64,
        /// Its length.
        len_bytes: u64,
    },
}

/// What is wrong with a segment's footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FooterFlaw {
    /// A footer's header has numbers that contradict each other.
    Header {
        /// The form of the runs.
        form: u32,
        /// Blocks of the segment.
        blocks: u32,
        /// Runs.
        runs: usize,
        /// Bytes of the runs.
        run_bytes: usize,
    },
    /// A footer has more pages than there are bytes.
    Pages {
        /// Its pages.
        pages: usize,
        /// The bytes.
        found_bytes: usize,
    },
    /// A footer's runs have another number of blocks than it has checksums.
    Coverage {
        /// Blocks of the runs.
        covered: usize,
        /// Checksums.
        blocks: u32,
    },
    /// A footer's run begins below zero.
    RunBelowZero,
    /// A footer's run continues another, and there is none.
    RunFollowsNone,
    /// A footer's run is outside of any volume, or too long.
    RunRange {
        /// The number of the volume.
        volume: u64,
        /// The first block.
        lba: u64,
    },
    /// A footer's run is of the volume that marks padding.
    RunOfPadding,
    /// A footer's run has no blocks.
    EmptyRun,
}

/// What is wrong with a record of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFlaw {
    /// A run of blocks leaves its segment.
    RunLeavesSegment {
        /// Where it begins.
        addr: BlockAddr,
        /// Its blocks.
        blocks: u64,
    },
    /// A run of blocks reaches the reserved address.
    RunReserved {
        /// Where it begins.
        addr: BlockAddr,
        /// Its blocks.
        blocks: u64,
    },
    /// A range of blocks reaches past the largest volume.
    PastVolume {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        lba: u64,
        /// Blocks.
        blocks: u64,
        /// Blocks of the largest volume.
        limit: u64,
    },
    /// A delta's volumes do not rise.
    VolumeOrder {
        /// The volume that is out of order.
        volume: VolumeId,
    },
    /// A delta's change is unknown.
    UnknownChange {
        /// The volume.
        volume: VolumeId,
        /// The number that begins the change.
        head: u64,
    },
    /// A delta's change begins below zero.
    ChangeBelowZero {
        /// The volume.
        volume: VolumeId,
    },
    /// A delta's change continues an assignment, and there is none.
    ChangeFollowsNone {
        /// The volume.
        volume: VolumeId,
    },
    /// A leaf is of an unknown kind.
    UnknownLeaf {
        /// The volume.
        volume: VolumeId,
        /// The leaf.
        leaf: u32,
        /// The kind.
        kind: u8,
    },
    /// A leaf's run is malformed, or begins before the end of the one before it.
    LeafRun {
        /// The volume.
        volume: VolumeId,
        /// The leaf.
        leaf: u32,
        /// The run.
        word: u64,
    },
    /// A leaf's addresses have an impossible width.
    AddressWidth {
        /// Bits of the block's number.
        block_bits: u32,
        /// Bytes of an address.
        len_bytes: usize,
    },
    /// A leaf calls a block both sealed and a hole.
    SealedHole {
        /// The block of the leaf.
        block: usize,
    },
}

macro_rules! parts {
    ($($variant:ident($part:ty)),*) => {
        $(impl From<$part> for FormatFlaw {
            fn from(flaw: $part) -> Self {
                Self::$variant(flaw)
            }
        })*
    };
}
parts!(Log(LogFlaw), Footer(FooterFlaw), Map(MapFlaw));

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.flaw)
    }
}

impl std::error::Error for FormatError {}

impl fmt::Display for FormatFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { expected_bytes, left_bytes } => {
                write!(f, "{expected_bytes} bytes expected, {left_bytes} left")
            }
            Self::Length { expected_bytes, found_bytes } => {
                write!(f, "{expected_bytes} bytes expected, {found_bytes} found")
            }
            Self::NoMagic => f.write_str("no magic number"),
            Self::Version { expected, found } => {
                write!(f, "version {found}, this program knows {expected}")
            }
            Self::Checksum { stored, computed } => {
                write!(f, "checksum {stored:#018x} expected, {computed:#018x} found")
            }
            Self::PageChecksum { page } => write!(f, "checksum mismatch in page {page}"),
            Self::NotUtf8 => f.write_str("a string is not UTF-8"),
            Self::WideInteger => f.write_str("an integer is wider than 64 bits"),
            Self::UnknownKind { kind } => write!(f, "kind {kind} is unknown"),
            Self::UnknownFlags { flags } => write!(f, "flags {flags:#x} are unknown"),
            Self::Reserved { found } => write!(f, "reserved bytes are {found:#x}, not zero"),
            Self::Json { text } => write!(f, "unreadable: {text}"),
            Self::ConfigTooLong { len_bytes, slot_bytes } => write!(
                f,
                "{len_bytes} bytes, but at most {slot_bytes} fit: the pool has too many volumes"
            ),
            Self::WideAddress { raw } => write!(f, "address {raw:#x} is out of range"),
            Self::NoSegment { segment } => write!(f, "there is no segment {segment}"),
            Self::LogStateTooLong { len_bytes } => write!(f, "a log state of {len_bytes} bytes"),
            Self::PayloadTooLong { len_bytes } => write!(f, "a payload of {len_bytes} bytes"),
            Self::Log(flaw) => flaw.fmt(f),
            Self::Footer(flaw) => flaw.fmt(f),
            Self::Map(flaw) => flaw.fmt(f),
        }
    }
}

impl fmt::Display for LogFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RecordData { data_blocks, blocks } => {
                write!(f, "{data_blocks} blocks of data for a record of {blocks}")
            }
            Self::RecordRange { lba, blocks } => {
                write!(f, "a record of {blocks} blocks at {lba} reaches past any volume")
            }
            Self::RecordGroup { record, frame } => {
                write!(f, "a record of group {record} in a frame of groups up to {frame}")
            }
            Self::FrameLength { len_bytes, records } => {
                write!(f, "{len_bytes} bytes for {records} records")
            }
            Self::FrameData { data_bytes, len_bytes } => {
                write!(f, "{data_bytes} bytes of data in a frame of {len_bytes}")
            }
            Self::Watermark { watermark, seq } => {
                write!(f, "watermark {watermark} is not below frame {seq}")
            }
            Self::CommittedGroup { max_txg, ahead } => {
                write!(f, "group {max_txg} is {ahead} groups ahead of the committed one")
            }
            Self::TooManyRings { rings } => write!(f, "{rings} rings"),
            Self::FrameNumbers { tail, next, watermark } => {
                write!(f, "tail {tail}, next {next}, watermark {watermark}")
            }
            Self::FrameLimit { max_frame_bytes } => write!(f, "frames of {max_frame_bytes} bytes"),
            Self::DuplicateRing { ring } => write!(f, "ring {ring} is listed twice"),
            Self::Ring { ring, tail_bytes, len_bytes } => {
                write!(f, "ring {ring}: tail {tail_bytes} of {len_bytes} bytes")
            }
        }
    }
}

impl fmt::Display for FooterFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Header { form, blocks, runs, run_bytes } => {
                write!(f, "{run_bytes} bytes for {runs} runs of {blocks} blocks in form {form}")
            }
            Self::Pages { pages, found_bytes } => {
                write!(f, "{found_bytes} bytes, too few for {pages} pages")
            }
            Self::Coverage { covered, blocks } => {
                write!(f, "runs of {covered} blocks for {blocks} checksums, or bytes behind them")
            }
            Self::RunBelowZero => f.write_str("a run begins below zero"),
            Self::RunFollowsNone => f.write_str("a run follows none"),
            Self::RunRange { volume, lba } => {
                write!(f, "a run at block {lba} of volume {volume} is out of range")
            }
            Self::RunOfPadding => f.write_str("a run of the volume that marks padding"),
            Self::EmptyRun => f.write_str("a run of no blocks"),
        }
    }
}

impl fmt::Display for MapFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RunLeavesSegment { addr, blocks } => {
                write!(f, "a run of {blocks} blocks at {addr} leaves its segment")
            }
            Self::RunReserved { addr, blocks } => {
                write!(f, "a run of {blocks} blocks at {addr} is reserved")
            }
            Self::PastVolume { volume, lba, blocks, limit } => {
                write!(f, "volume {volume}: {blocks} blocks at {lba} reach past {limit}")
            }
            Self::VolumeOrder { volume } => write!(f, "volume {volume} is out of order"),
            Self::UnknownChange { volume, head } => {
                write!(f, "volume {volume}: change {head:#x} is unknown")
            }
            Self::ChangeBelowZero { volume } => {
                write!(f, "volume {volume}: an LBA is below zero")
            }
            Self::ChangeFollowsNone { volume } => {
                write!(f, "volume {volume}: a change follows no assignment")
            }
            Self::UnknownLeaf { volume, leaf, kind } => {
                write!(f, "volume {volume} leaf {leaf}: kind {kind} is unknown")
            }
            Self::LeafRun { volume, leaf, word } => {
                write!(f, "volume {volume} leaf {leaf}: run {word:#x} is out of order")
            }
            Self::AddressWidth { block_bits, len_bytes } => write!(
                f,
                "addresses of {len_bytes} bytes with {block_bits} bits for the block's number"
            ),
            Self::SealedHole { block } => write!(f, "block {block} of a leaf is a sealed hole"),
        }
    }
}

//! The map as the devices hold it: the journal is read, and what follows from it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::Array;
use forebay_format::config::{MemberConfig, PoolConfig};
use forebay_format::fingerprints::Fingerprints;
use forebay_format::journal::{FrameKind, SegmentRecord, SegmentUse};
use forebay_format::map_record::{Delta, decode_leaves};
use forebay_format::snapshot::SnapshotRecord;
use forebay_format::superblock::{JournalPosition, Superblock};
use forebay_map::{DEDUP_VOLUME, Map, PackedRef};
use forebay_segment::{JournalReader, SegmentError, SegmentState, SegmentTable};
use forebay_units::{BlockAddr, DeviceId, Lba, SegmentId, VolumeId};

use crate::import::error::{MapLoadError, MapTooLarge};
use crate::layout::{LayoutError, build_array, check_ids, data_blocks};
use crate::opener::OpenDevice;
use crate::status::ImportReport;
use crate::status::stats::{MapSize, map_size};

/// The map on the devices, and what follows from it.
pub(crate) struct Loaded {
    pub array: Rc<Array>,
    pub table: Rc<SegmentTable>,
    pub map: Map,
    /// The last record of each snapshot, by id.
    pub snapshots: Vec<SnapshotRecord>,
    /// What the journal knows of de-duplicated contents.
    pub fingerprints: Fingerprints,
    /// Segments of the map journal.
    pub journal: Vec<JournalPosition>,
    /// Whether the last of them has copies of its blocks.
    pub doubled: Option<bool>,
    /// Whether a part of the journal has neither redundancy nor a copy.
    pub lacks_copies: bool,
    /// Blocks of the journal that some device does not hold as it should.
    pub repairs: Vec<(BlockAddr, Vec<u8>)>,
}

impl Loaded {
    /// The map of a pool without data.
    pub fn empty(array: Rc<Array>) -> Self {
        let table = empty_table(&array);
        let (journal, repairs) = (Vec::new(), Vec::new());
        let (map, snapshots) = (Map::new(), Vec::new());
        let fingerprints = Fingerprints::default();
        let (doubled, lacks_copies) = (None, false);
        Self { array, table, map, snapshots, fingerprints, journal, doubled, lacks_copies, repairs }
    }
}

fn empty_table(array: &Array) -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    for geometry in array.groups() {
        table.add_group(geometry.segments, data_blocks(&geometry));
    }
    table
}

/// Bytes of the free memory that a map may take: an eighth is left for what the allocator loses,
/// and some for buffers of the rest of the server.
pub(crate) fn room_for_map(free_bytes: u64) -> u64 {
    const OTHERS_BYTES: u64 = 64 << 20;
    (free_bytes - free_bytes / 8).saturating_sub(OTHERS_BYTES)
}

/// Fails if a map is larger than its room, when there is a limit to it.
fn check_room(
    config: &PoolConfig,
    size: MapSize,
    is_whole: bool,
    room_bytes: Option<u64>,
) -> Result<(), MapLoadError> {
    // A map without a volume fits anywhere.
    let is_too_large = |room: &u64| size.volume_bytes > 0 && size.bytes > *room;
    let Some(room_bytes) = room_bytes.filter(is_too_large) else { return Ok(()) };
    let volume = config.volumes.iter().find(|volume| VolumeId(volume.id) == size.volume);
    Err(MapLoadError::NoMemory(Box::new(MapTooLarge {
        needed_bytes: size.bytes,
        is_whole,
        room_bytes,
        volume: volume.map_or_else(|| size.volume.to_string(), |volume| volume.name.clone()),
        volume_bytes: size.volume_bytes,
    })))
}

/// Reads the map journal, and derives from it what each segment holds.
pub(crate) async fn load_map(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    root: &Superblock,
    room_bytes: Option<u64>,
    report: &mut ImportReport,
) -> Result<Loaded, MapLoadError> {
    // Before the journal is read: that may take minutes.
    check_room(config, MapSize::from_counters(&root.counters), true, room_bytes)?;
    // Which segments a member misses is known only after the journal has been read. Until then, a
    // member that misses anything is not read.
    let end = config.groups.iter().map(|g| g.first_segment + g.segments).max().unwrap_or(0);
    config.groups.iter().try_for_each(check_ids)?;
    let everything = 0..end;
    let cautious = |m: &MemberConfig| match m.stale_since {
        Some(_) => vec![everything.clone()],
        None => m.stale.iter().map(|(a, b)| *a..*b).collect(),
    };
    let array = build_array(config, devices, &cautious)?;
    let fits = |map: &Map| check_room(config, map_size(map), false, room_bytes);
    let journal = Journal::read(&array, config.guid, root, &fits, report).await?;
    let table = segment_table(&array, &journal, root)?;
    count_live(&journal.map, &table)?;
    check_refs(&journal.map)?;
    let array = build_array(config, devices, &|m| stale_segments(m, &table, &journal))?;
    let Journal { map, snapshots, fingerprints, positions, doubled, lacks_copies, repairs, .. } =
        journal;
    let snapshots = snapshots.into_values().collect();
    let journal = positions;
    Ok(Loaded {
        array,
        table,
        map,
        snapshots,
        fingerprints,
        journal,
        doubled,
        lacks_copies,
        repairs,
    })
}

/// The content of the map journal.
#[derive(Default)]
struct Journal {
    map: Map,
    snapshots: BTreeMap<VolumeId, SnapshotRecord>,
    fingerprints: Fingerprints,
    /// The last record of each segment that the journal names.
    records: BTreeMap<SegmentId, SegmentRecord>,
    /// Where the journal enters each of its segments.
    positions: Vec<JournalPosition>,
    doubled: Option<bool>,
    lacks_copies: bool,
    repairs: Vec<(BlockAddr, Vec<u8>)>,
}

impl Journal {
    /// Reads the journal up to `root`. What a broken chain has given is dropped, and a second
    /// attempt follows, which takes no frame for certain before the end.
    async fn read(
        array: &Rc<Array>,
        guid: u64,
        root: &Superblock,
        fits: &dyn Fn(&Map) -> Result<(), MapLoadError>,
        report: &mut ImportReport,
    ) -> Result<Self, MapLoadError> {
        let (Some(start), Some(end)) = (root.journal_start, root.journal_end) else {
            return Ok(Self::default());
        };
        let reader = || JournalReader::new(array.clone(), guid, start, end);
        match Self::read_chain(reader(), fits, report).await {
            Err(MapLoadError::Segment(error)) if matches!(*error, SegmentError::Journal { .. }) => {
                Self::read_chain(reader().holding_all(), fits, report).await
            }
            found => found,
        }
    }

    async fn read_chain(
        mut reader: JournalReader,
        fits: &dyn Fn(&Map) -> Result<(), MapLoadError>,
        report: &mut ImportReport,
    ) -> Result<Self, MapLoadError> {
        let mut journal = Self::default();
        while let Some(frame) = reader.next().await? {
            let payload = frame.payload();
            match frame.kind() {
                FrameKind::Delta => journal.map.apply(&Delta::decode(payload)?),
                FrameKind::Leaves => {
                    decode_leaves(payload)?.iter().for_each(|image| journal.map.load_leaf(image));
                }
                FrameKind::Segments => {
                    for record in SegmentRecord::decode_all(payload)? {
                        journal.records.insert(record.segment, record);
                    }
                }
                FrameKind::Snapshots => {
                    for record in SnapshotRecord::decode_all(payload)? {
                        journal.snapshots.insert(record.id(), record);
                    }
                }
                FrameKind::Fingerprints => {
                    let found = Fingerprints::decode(payload)?;
                    let all = &mut journal.fingerprints;
                    all.next = all.next.max(found.next);
                    all.records.extend(found.records);
                }
                FrameKind::Pad | FrameKind::Jump => {}
            }
            fits(&journal.map)?;
        }
        report.map_bytes = reader.bytes();
        journal.repairs = reader.take_repairs();
        journal.positions = reader.segments().to_vec();
        journal.doubled = reader.is_end_doubled();
        journal.lacks_copies = reader.lacks_copies();
        Ok(journal)
    }

    /// Whether `segment` is one of the journal's own.
    fn is_in(&self, segment: SegmentId) -> bool {
        self.positions.iter().any(|at| at.addr.segment() == segment)
    }
}

/// The segments as the journal's records tell them, with the journal's own up to `root`.
fn segment_table(
    array: &Array,
    journal: &Journal,
    root: &Superblock,
) -> Result<Rc<SegmentTable>, MapLoadError> {
    let table = empty_table(array);
    for record in journal.records.values() {
        let mut record = *record;
        if record.kind == SegmentUse::Map && !journal.is_in(record.segment) {
            record.kind = SegmentUse::Free;
        }
        if !table.load_record(&record) {
            return Err(MapLoadError::UnknownSegment { segment: record.segment });
        }
    }
    for segment in journal.positions.iter().map(|at| at.addr.segment()) {
        if table.get(segment).state == SegmentState::Free {
            table.reopen(segment);
            table.close(segment, false);
        }
        // The journal's record of its own segments is one root old. Rows written since then must be
        // rebuilt and scrubbed as well.
        let geometry = array.geometry_of(segment).map_err(LayoutError::from)?;
        let last = root.journal_end.filter(|end| end.addr.segment() == segment);
        let copied = if journal.doubled == Some(true) { geometry.doubled_rows() } else { 0 };
        let rows = last
            .map_or(geometry.rows(), |end| copied + end.addr.block() / geometry.blocks_per_row());
        table.wrote(segment, rows, root.commit);
    }
    Ok(table)
}

/// Counts the blocks of the map as live in their segments. Fails if one lies in no segment in use.
fn count_live(map: &Map, table: &SegmentTable) -> Result<(), MapLoadError> {
    let mut bad = None;
    map.for_each(|volume, lba, addr, blocks| {
        if addr.segment().0 >= table.count() {
            bad.get_or_insert(MapLoadError::OutsideGroups { volume, lba, addr });
            return;
        }
        table.add_live(addr, blocks);
        if table.get(addr.segment()).state == SegmentState::Free {
            bad.get_or_insert(MapLoadError::InFreeSegment { volume, lba, addr });
        }
    });
    bad.map_or(Ok(()), Err)
}

/// Fails if a block refers to a content or a packed block that is not there.
fn check_refs(map: &Map) -> Result<(), MapLoadError> {
    let mut bad = None;
    map.for_each_ref(|first, blocks| {
        let found = map.mapped_within(DEDUP_VOLUME, first, u64::from(blocks));
        if found != u64::from(blocks) {
            bad.get_or_insert(MapLoadError::NoContent { content: first });
        }
    });
    map.for_each_packed_ref(|addr, blocks| {
        for raw in addr.raw()..addr.raw() + u64::from(blocks) {
            let Some(found) = PackedRef::of(BlockAddr::from_raw(raw)) else { continue };
            let numbers = found.block.0..found.block.0 + found.span();
            if let Some(packed) = numbers.into_iter().find(|number| !map.has_packed(*number)) {
                bad.get_or_insert(MapLoadError::NoPackedBlock { packed: Lba(packed) });
            }
        }
    });
    bad.map_or(Ok(()), Err)
}

/// Segments that `member` misses, as far as they are in use.
fn stale_segments(
    member: &MemberConfig,
    table: &SegmentTable,
    journal: &Journal,
) -> Vec<Range<u32>> {
    let mut stale: Vec<Range<u32>> = member.stale.iter().map(|(a, b)| *a..*b).collect();
    let Some(since) = member.stale_since else { return stale };
    table.for_each(|segment, info| {
        // The journal's own records are one root behind.
        let may_be_newer = info.last >= since || journal.is_in(segment);
        if info.state != SegmentState::Free && may_be_newer {
            stale.push(segment.0..segment.0 + 1);
        }
    });
    stale
}

#[cfg(test)]
mod tests;

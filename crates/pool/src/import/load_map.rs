//! The map as the devices hold it: the journal is read, and what follows from it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::Array;
use forebay_format::config::{MemberConfig, PoolConfig};
use forebay_format::journal::{FrameKind, SegmentRecord};
use forebay_format::map_record::{Delta, decode_leaves};
use forebay_format::superblock::{JournalPosition, Superblock};
use forebay_map::Map;
use forebay_segment::{JournalReader, SegmentTable};
use forebay_units::{BlockAddr, DeviceId, SegmentId};

use crate::import::error::MapLoadError;
use crate::layout::{LayoutError, build_array, data_blocks};
use crate::opener::OpenDevice;
use crate::status::ImportReport;

/// The map on the devices, and what follows from it.
pub(crate) struct Loaded {
    pub array: Rc<Array>,
    pub table: Rc<SegmentTable>,
    pub map: Map,
    /// Segments of the map journal.
    pub journal: Vec<JournalPosition>,
    /// Whether the last of them has copies of its blocks.
    pub doubled: Option<bool>,
    /// Blocks of the journal that some device does not hold as it should.
    pub repairs: Vec<(BlockAddr, Vec<u8>)>,
}

impl Loaded {
    /// The map of a pool without data.
    pub fn empty(array: Rc<Array>) -> Self {
        let table = empty_table(&array);
        let (journal, repairs) = (Vec::new(), Vec::new());
        Self { array, table, map: Map::new(), journal, doubled: None, repairs }
    }
}

fn empty_table(array: &Array) -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    for geometry in array.groups() {
        table.add_group(geometry.segments, data_blocks(&geometry));
    }
    table
}

/// Reads the map journal, and derives from it what each segment holds.
pub(crate) async fn load_map(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    root: &Superblock,
    report: &mut ImportReport,
) -> Result<Loaded, MapLoadError> {
    // Which segments a member misses is known only after the journal has been read. Until then, a
    // member that misses anything is not read.
    let end = config.groups.iter().map(|g| g.first_segment + g.segments).max().unwrap_or(0);
    let everything = 0..end;
    let cautious = |m: &MemberConfig| match m.stale_since {
        Some(_) => vec![everything.clone()],
        None => m.stale.iter().map(|(a, b)| *a..*b).collect(),
    };
    let array = build_array(config, devices, &cautious)?;
    let mut map = Map::new();
    let mut records: BTreeMap<SegmentId, SegmentRecord> = BTreeMap::new();
    let (mut journal, mut doubled, mut repairs) = (Vec::new(), None, Vec::new());
    if let (Some(start), Some(end)) = (root.journal_start, root.journal_end) {
        let mut reader = JournalReader::new(array.clone(), config.guid, start, end);
        while let Some(frame) = reader.next().await? {
            let payload = frame.payload();
            match frame.kind() {
                FrameKind::Delta => map.apply(&Delta::decode(payload)?),
                FrameKind::Leaves => {
                    decode_leaves(payload)?.iter().for_each(|image| map.load_leaf(image));
                }
                FrameKind::Segments => {
                    for record in SegmentRecord::decode_all(payload)? {
                        records.insert(record.segment, record);
                    }
                }
                FrameKind::Pad | FrameKind::Jump => {}
            }
        }
        report.map_bytes = reader.bytes();
        repairs = reader.take_repairs();
        journal = reader.segments().to_vec();
        doubled = reader.is_end_doubled();
    }
    let journal_segments: Vec<SegmentId> = journal.iter().map(|at| at.addr.segment()).collect();
    let table = empty_table(&array);
    for record in records.values() {
        let is_journal = journal_segments.contains(&record.segment);
        let mut record = *record;
        if record.kind == 2 && !is_journal {
            record.kind = 0;
        }
        if !table.load_record(&record) {
            return Err(MapLoadError::UnknownSegment { segment: record.segment });
        }
    }
    for segment in &journal_segments {
        if table.get(*segment).state == forebay_segment::SegmentState::Free {
            table.reopen(*segment);
            table.close(*segment, false);
        }
        // The journal's record of its own segments is one root old. Rows written since then must be
        // rebuilt and scrubbed as well.
        let geometry = array.geometry_of(*segment).map_err(LayoutError::from)?;
        let last = root.journal_end.filter(|end| end.addr.segment() == *segment);
        let copied = if doubled == Some(true) { geometry.doubled_rows() } else { 0 };
        let rows = last
            .map_or(geometry.rows(), |end| copied + end.addr.block() / geometry.blocks_per_row());
        table.wrote(*segment, rows, root.commit);
    }
    let mut bad = None;
    map.for_each(|volume, lba, addr, blocks| {
        if addr.segment().0 >= table.len() {
            bad.get_or_insert(MapLoadError::OutsideGroups { volume, lba, addr });
            return;
        }
        table.add_live(addr, blocks);
        if table.get(addr.segment()).state == forebay_segment::SegmentState::Free {
            bad.get_or_insert(MapLoadError::InFreeSegment { volume, lba, addr });
        }
    });
    if let Some(error) = bad {
        return Err(error);
    }
    let exact = |m: &MemberConfig| {
        let mut stale: Vec<Range<u32>> = m.stale.iter().map(|(a, b)| *a..*b).collect();
        if let Some(since) = m.stale_since {
            table.for_each(|segment, info| {
                let is_journal = journal_segments.contains(&segment);
                let in_use = info.state != forebay_segment::SegmentState::Free;
                // The journal's own records are one root behind.
                if in_use && (info.last >= since || is_journal) {
                    stale.push(segment.0..segment.0 + 1);
                }
            });
        }
        stale
    };
    let array = build_array(config, devices, &exact)?;
    Ok(Loaded { array, table, map, journal, doubled, repairs })
}

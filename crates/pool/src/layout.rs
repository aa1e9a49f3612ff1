//! Layout: the geometry of groups, the regions reserved on devices, and the limits that follow.
//!
//! What enters: a pool's configuration, sizes of devices. What leaves: array groups, rings of the
//! log, limits. What always holds: nothing here does I/O or knows a running pool.
//! Who calls: creation, import, administration, commits.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::{
    Array, ArrayError, ErrorCounts, GeometryError, GroupGeometry, GroupSpec as ArrayGroup,
    MemberSpec as ArrayMember, MemberState,
};
use forebay_format::config::{GroupConfig, MemberConfig, MemberUse, PoolConfig, RingConfig};
use forebay_format::footer::{footer_blocks, usual_footer_blocks};
use forebay_format::label::body_range;
use forebay_format::map_record::DEDUP_REF_SEGMENT;
use forebay_intent_log::{LogRing, Side};
use forebay_segment::STREAMS;
use forebay_units::{BLOCK_BYTES, BlockAddr, DeviceId};

use crate::opener::OpenDevice;
use crate::settings::Settings;

/// Segments from which on blocks are separated by lifetime. In smaller pools the open segments of
/// six streams would take too large a share.
pub(crate) const SEPARATE_SEGMENTS: u32 = 512;

/// The smallest dirty limit, in bytes.
pub(crate) const LEAST_DIRTY_BYTES: u64 = 4 << 20;

/// Default for the largest dirty limit, in bytes.
pub(crate) const MOST_DIRTY_BYTES: u64 = 256 << 20;

/// Bytes of a column in a row.
pub(crate) const UNIT_BYTES: u64 = 16 << 10;

/// Most segments of a group.
const MOST_SEGMENTS: u64 = 1 << 16;

/// Devices that do not make up groups: the array refused one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError(pub ArrayError);

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ArrayError> for LayoutError {
    fn from(error: ArrayError) -> Self {
        Self(error)
    }
}

/// Limits that are fixed at import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Dirty bytes at which a group is synced, however young it is.
    pub txg_bytes: u64,
    /// Segments that a group leaves to the cleaner.
    pub reserve_segments: u32,
    /// Segments that only the map journal may take.
    pub map_reserve_segments: u32,
}

pub(crate) fn geometry_of(group: &GroupConfig) -> GroupGeometry {
    GroupGeometry {
        layout: group.layout,
        members: group.members.len(),
        unit_bytes: group.unit_bytes,
        column_bytes: group.column_bytes,
        data_start_bytes: group.data_start_bytes,
        first_segment: group.first_segment,
        segments: group.segments,
    }
}

pub(crate) fn data_blocks(geometry: &GroupGeometry) -> u32 {
    let blocks = geometry.blocks_per_segment();
    blocks - footer_blocks(blocks)
}

/// The array of a configuration over the open devices. `stale` returns the segments that a member
/// misses.
pub(crate) fn build_array(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    stale: &dyn Fn(&MemberConfig) -> Vec<Range<u32>>,
) -> Result<Rc<Array>, LayoutError> {
    let mut groups = Vec::new();
    for group in &config.groups {
        groups.push(build_array_group(group, devices, stale)?);
    }
    Ok(Array::new(groups)?)
}

/// One group of the array.
pub(crate) fn build_array_group(
    group: &GroupConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    stale: &dyn Fn(&MemberConfig) -> Vec<Range<u32>>,
) -> Result<ArrayGroup, LayoutError> {
    let member = |member: &MemberConfig| {
        let id = DeviceId(member.device);
        ArrayMember {
            id,
            device: devices.get(&id).map(OpenDevice::device),
            state: match member.state {
                MemberUse::Online => MemberState::Online,
                MemberUse::Offline => MemberState::Offline,
                MemberUse::Faulted => MemberState::Faulted,
            },
            stale: stale(member),
            errors: ErrorCounts::default(),
        }
    };
    let slots = group.members.iter().map(|first| {
        let chain = std::iter::successors(Some(first), |m| m.replacement.as_deref());
        chain.map(member).collect::<Vec<_>>()
    });
    Ok(ArrayGroup { geometry: geometry_of(group), slots: slots.collect() })
}

/// First number of rings in the pool, so that they are not taken for log devices.
pub(crate) const POOL_RINGS_FROM: u32 = 32;

/// Rings in the form that the configuration keeps.
pub(crate) fn ring_configs(config: &PoolConfig, rings: &[LogRing]) -> Vec<RingConfig> {
    let member = |side: &Side| crate::layout::member_of(config, side.device_id.0).cloned();
    let keep = |ring: &LogRing| RingConfig {
        ring: u32::from(ring.index),
        len_bytes: ring.len_bytes,
        start_bytes: ring.sides.first().map_or(0, |side| side.start_bytes),
        sides: ring.sides.iter().filter_map(member).collect(),
    };
    rings.iter().map(keep).collect()
}

/// The log's rings on the devices in use: log devices, or regions of the data devices.
pub(crate) fn log_rings_of(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> Vec<LogRing> {
    let side = |member: &MemberConfig, start_bytes: u64| {
        let device_id = DeviceId(member.device);
        let usable = member.state == MemberUse::Online;
        let device = devices.get(&device_id).filter(|_| usable)?.device();
        Some(Side { device_id, device, start_bytes })
    };
    if !config.logs.is_empty() {
        let rings = config.logs.iter().map(|ring| LogRing {
            index: ring.ring as u8,
            len_bytes: ring.len_bytes,
            sides: ring.sides.iter().filter_map(|s| side(s, ring.start_bytes)).collect(),
        });
        // Sides that need a mirror with another kind of side are not used without one.
        let holds = |side: &Side| !side.device.dram().is_some_and(|dram| dram.needs_mirror);
        let rings: Vec<LogRing> = rings.filter(|ring| ring.sides.iter().any(holds)).collect();
        if !rings.is_empty() {
            return rings;
        }
    }
    // In the pool: one copy more than the group survives failures, and several such rings when
    // there are enough devices.
    const MOST_RINGS: usize = 4;
    let mut rings: Vec<LogRing> = Vec::new();
    for group in &config.groups {
        let geometry = geometry_of(group);
        let start = forebay_format::label::LABEL_BYTES;
        let stale = |m: &&MemberConfig| m.stale_since.is_none() && m.stale.is_empty();
        let sides: Vec<Side> =
            group.members.iter().filter(stale).filter_map(|m| side(m, start)).collect();
        let copies = geometry.parity_columns() + 1;
        for chunk in sides.chunks_exact(copies.min(sides.len()).max(1)) {
            if rings.len() < MOST_RINGS {
                rings.push(LogRing {
                    index: POOL_RINGS_FROM as u8 + rings.len() as u8,
                    len_bytes: config.reserve_bytes,
                    sides: chunk.to_vec(),
                });
            }
        }
    }
    rings
}

/// Limits, the dirty limit in bytes, and blocks that data may take.
pub(crate) fn limits_for(config: &PoolConfig) -> (Limits, u64, u64) {
    let groups: Vec<GroupGeometry> = config.groups.iter().map(geometry_of).collect();
    let segments: u64 = groups.iter().map(|g| u64::from(g.segments)).sum();
    let blocks: u64 =
        groups.iter().map(|g| u64::from(g.segments) * u64::from(data_blocks(g))).sum();
    let auto = (blocks * BLOCK_BYTES / 16).clamp(LEAST_DIRTY_BYTES, MOST_DIRTY_BYTES);
    let dirty_limit = Settings::of(&config.properties).dirty_limit.unwrap_or(auto);
    let dirty_limit = dirty_limit.max(LEAST_DIRTY_BYTES);
    let per_segment = (blocks / segments.max(1)).max(1);
    let dirty_segments = (dirty_limit / BLOCK_BYTES).div_ceil(per_segment);
    let streams = if segments >= u64::from(SEPARATE_SEGMENTS) { u64::from(STREAMS) } else { 2 };
    // Segments that the cleaner works in when no other is free, and segments of the journal alone.
    let copies = journal_copies(&groups);
    let (reserve, map_reserve) = (3, 3 * copies);
    // The open streams, one group, the journal (about 1 % of what is mapped), and 1/24 so that the
    // cleaner does not work on segments whose blocks are all alive.
    let journal = copies * (2 + segments / 80);
    let kept = streams + 2 + map_reserve + dirty_segments + journal + 4 + segments / 24;
    let limits = Limits {
        txg_bytes: dirty_limit / 3,
        reserve_segments: reserve as u32,
        map_reserve_segments: map_reserve as u32,
    };
    (limits, dirty_limit, segments.saturating_sub(kept) * per_segment)
}

/// The member of a configuration with this id, data or log.
pub(crate) fn member_of(config: &PoolConfig, device: u32) -> Option<&MemberConfig> {
    config
        .data_members()
        .chain(config.logs.iter().flat_map(|ring| &ring.sides))
        .find(|member| member.device == device)
}

/// Paths of all devices but spares, which carry no label.
pub(crate) fn device_paths(config: &PoolConfig) -> Vec<String> {
    let sides = config.logs.iter().flat_map(|ring| &ring.sides);
    let members = config.data_members().chain(sides).map(|member| &member.path);
    members.chain(config.caches.iter().map(|cache| &cache.path)).cloned().collect()
}

/// Bytes of each data device that are reserved for a log in the pool.
pub(crate) fn reserve_bytes(smallest_device_bytes: u64) -> u64 {
    (smallest_device_bytes / 64).clamp(4 << 20, 256 << 20) / (1 << 20) * (1 << 20)
}

/// Shape of a group with `data_columns` whose smallest device has `size_bytes`: where its data
/// begins, bytes of a column, and number of segments. `like` is the bytes of data in a segment of
/// the pool's other groups; the new segments are about as large, because reserves are counted in
/// segments.
pub(crate) fn group_shape(
    size_bytes: u64,
    reserve_bytes: u64,
    data_columns: usize,
    like: Option<u64>,
) -> (u64, u64, u32) {
    let (start, end) = body_range(size_bytes);
    let data_start = start + reserve_bytes;
    let body = end.saturating_sub(data_start);
    let alike = like.map(|bytes| {
        let column = bytes.div_ceil(data_columns as u64).next_multiple_of(UNIT_BYTES);
        // An address can name only so many segments, and the segment table stays small.
        column.max((body / MOST_SEGMENTS).next_multiple_of(UNIT_BYTES))
    });
    let column = alike.unwrap_or_else(|| column_bytes(body, data_columns as u64));
    (data_start, column, (body / column) as u32)
}

/// Refuses a group whose segments would have the ids of references to de-duplicated blocks.
pub(crate) fn check_ids(group: &GroupConfig) -> Result<(), LayoutError> {
    let GroupConfig { first_segment, segments, .. } = *group;
    match first_segment.checked_add(segments) {
        Some(end) if end <= DEDUP_REF_SEGMENT.0 => Ok(()),
        _ => Err(ArrayError::from(GeometryError::Segments { first_segment, segments }).into()),
    }
}

/// The column size that leaves the most room to data. Small segments cost less, because a pool
/// reserves a number of them. Footers take whole blocks, so some sizes waste less than others.
/// Among equal sizes the larger one wins, because devices prefer long writes and long discards.
fn column_bytes(body_bytes: u64, data_columns: u64) -> u64 {
    const MOST_BYTES: u64 = 16 << 20;
    /// Free segments, open ones and the journal's, beside what grows with the pool.
    const HELD_SEGMENTS: u64 = 18;
    const PARTS: u64 = 1_000_000;
    /// A difference of a thousandth of the space does not count.
    const ALIKE: u64 = 1000;
    let least = ((256 << 10) / data_columns.div_ceil(2).next_power_of_two()).max(4 * UNIT_BYTES);
    let cost = |column: &u64| {
        let blocks = column / BLOCK_BYTES * data_columns;
        let footer = u64::from(usual_footer_blocks(blocks as u32));
        footer * PARTS / blocks + HELD_SEGMENTS * PARTS / (body_bytes / column).max(1)
    };
    let sizes = (least / UNIT_BYTES..=MOST_BYTES / UNIT_BYTES).map(|units| units * UNIT_BYTES);
    let sizes: Vec<u64> = sizes.filter(|column| body_bytes / column <= MOST_SEGMENTS).collect();
    let cheapest = sizes.iter().map(cost).min();
    let good = sizes.iter().rev().find(|column| Some(cost(column)) <= cheapest.map(|c| c + ALIKE));
    good.copied().unwrap_or_else(|| {
        // A column must be small enough for an address to name all blocks of a segment.
        let has_names =
            |column: u64| column / BLOCK_BYTES * data_columns <= u64::from(BlockAddr::MAX_BLOCKS);
        let mut column = MOST_BYTES;
        while body_bytes / column > MOST_SEGMENTS && has_names(2 * column) {
            column *= 2;
        }
        column
    })
}

/// The region of the log on a log device: everything between its labels.
pub(crate) fn log_range(size_bytes: u64) -> (u64, u64) {
    let (start, end) = body_range(size_bytes);
    // A log of this size is never full, because a group is committed long before.
    const MOST: u64 = 16 << 30;
    (start, (end - start).min(MOST))
}

/// The number in the name of a log device, such as 1 in `mirror-1`. Data groups are counted first,
/// so that no two have the same name.
pub(crate) fn log_number(config: &PoolConfig, ring: &RingConfig) -> usize {
    config.groups.len() + ring.ring as usize
}

/// Whether the pool has a group, mirror of log devices or replacement that status shows as `name`,
/// such as `raidz1-0`.
pub(crate) fn has_group(config: &PoolConfig, name: &str) -> bool {
    let logs = config.logs.iter().filter(|ring| ring.sides.len() > 1);
    let mut logs = logs.map(|ring| format!("mirror-{}", log_number(config, ring)));
    let members = config.groups.iter().flat_map(|group| group.members.iter().enumerate());
    let mut replaced = members.filter(|(_, member)| member.replacement.is_some());
    has_data_group(config, name)
        || logs.any(|log| log == name)
        || replaced.any(|(column, _)| format!("replacing-{column}") == name)
}

/// Whether the pool has a group of data devices that status shows as `name`.
pub(crate) fn has_data_group(config: &PoolConfig, name: &str) -> bool {
    let mut groups = config.groups.iter().enumerate();
    groups.any(|(number, group)| format!("{}-{number}", group.layout) == name)
}

/// Largest number of copies of the map journal: two in groups without redundancy.
pub(crate) fn journal_copies(groups: &[GroupGeometry]) -> u64 {
    if groups.iter().all(GroupGeometry::has_redundancy) { 1 } else { 2 }
}

#[cfg(test)]
mod tests;

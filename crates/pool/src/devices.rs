//! Finding and opening the devices of a pool.

use forebay_array::Layout;
use forebay_device::{Device, ErrorKind};
use forebay_format::config::{MemberConfig, PoolConfig, RingConfig};
use forebay_format::footer::usual_footer_blocks;
use forebay_format::label::{MIN_DEVICE_BYTES, body_range};
use forebay_units::{BLOCK_BYTES, BlockAddr, format_bytes};

use crate::foreign::content_of;
use crate::labels::{Label, read_label};
use crate::possession::{Gate, Guarded};
use crate::spec::Redundancy;
use crate::{Pool, PoolError};

/// Bytes of a column in a row.
pub(crate) const UNIT_BYTES: u64 = 16 << 10;

pub(crate) fn layout_of(redundancy: Redundancy) -> Layout {
    match redundancy {
        Redundancy::Raid0 => Layout::Raid0,
        Redundancy::Mirror => Layout::Mirror,
        Redundancy::Raidz1 => Layout::Raidz1,
        Redundancy::Raidz2 => Layout::Raidz2,
        Redundancy::Raidz3 => Layout::Raidz3,
    }
}

pub(crate) fn parse_layout(name: &str) -> Option<Layout> {
    let all = [Layout::Raid0, Layout::Mirror, Layout::Raidz1, Layout::Raidz2, Layout::Raidz3];
    all.into_iter().find(|layout| layout.to_string() == name)
}

/// A device that is about to join a pool.
pub(crate) struct Candidate {
    pub path: String,
    pub guarded: Guarded,
    pub size_bytes: u64,
}

impl Candidate {
    pub fn device(&self) -> Device {
        self.guarded.device.clone()
    }
}

/// Opens a device that is to join a pool, and refuses it when it is too small, in use, or (without
/// `force`) belongs to a pool already or holds something of others.
pub(crate) async fn open_candidate(
    gate: &Gate,
    path: &str,
    force: bool,
) -> Result<Candidate, PoolError> {
    let guarded = gate.open(path).map_err(|e| match e.kind {
        ErrorKind::Busy => PoolError::new(format!(
            "{path} is in use (by a pool that is imported, or another program); name another \
             device, or export that pool first"
        )),
        _ => PoolError::new(e.to_string()),
    })?;
    let device = guarded.device.clone();
    let size_bytes = device.geometry().size_bytes;
    if size_bytes < MIN_DEVICE_BYTES {
        return Err(PoolError::new(format!(
            "{path} has {}, but a device needs {} at least",
            format_bytes(size_bytes),
            format_bytes(MIN_DEVICE_BYTES)
        )));
    }
    if !force && let Some(owner) = owner_of(&read_label(&device).await) {
        return Err(PoolError::new(format!(
            "{path} belongs to pool '{owner}'; use -f to take it all the same (that pool's data \
             on it is lost)"
        )));
    }
    if !force && let Some(what) = content_of(&device).await {
        return Err(PoolError::new(format!(
            "{path} holds {what}; use -f to take it all the same (what is on it is lost)"
        )));
    }
    Ok(Candidate { path: path.to_owned(), guarded, size_bytes })
}

/// The pool that a label names, unless it was destroyed or has left it.
pub(crate) fn owner_of(label: &Label) -> Option<String> {
    let (envelope, config) = label.current()?;
    let member = member_of(config, envelope.device).is_some();
    (member && !config.destroyed).then(|| config.name.clone())
}

/// The member of a configuration with this id, data or log.
pub(crate) fn member_of(config: &PoolConfig, device: u32) -> Option<&MemberConfig> {
    config
        .data_members()
        .chain(config.logs.iter().flat_map(|ring| &ring.sides))
        .find(|member| member.device == device)
}

/// Bytes of each data device that are kept for a log in the pool.
pub(crate) fn reserve_bytes(smallest_device_bytes: u64) -> u64 {
    (smallest_device_bytes / 64).clamp(4 << 20, 256 << 20) / (1 << 20) * (1 << 20)
}

/// Shape of a group with `data_columns` over devices of which the smallest has `size_bytes`: where
/// its data begins, bytes of a column, and how many segments there are. `like`: bytes of data in a
/// segment of the pool's other groups. Its segments are about as large, for what is kept free is
/// counted in segments.
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
        // An address can name so many segments, and the table shall not be larger.
        column.max((body / MOST_SEGMENTS).next_multiple_of(UNIT_BYTES))
    });
    let column = alike.unwrap_or_else(|| column_bytes(body, data_columns as u64));
    (data_start, column, (body / column) as u32)
}

/// Most segments of a group.
const MOST_SEGMENTS: u64 = 1 << 16;

/// The column of segments that leave the most to data. A pool keeps back a number of segments,
/// whatever their size, so that small ones cost less; and of each its footer, which takes whole
/// blocks, so that some sizes cost less than others. Where that makes no difference the larger
/// column is better: devices like long writes and long discards.
fn column_bytes(body_bytes: u64, data_columns: u64) -> u64 {
    const MOST_BYTES: u64 = 16 << 20;
    /// Free, open and the journal's, beside what grows with the pool.
    const HELD_SEGMENTS: u64 = 18;
    const PARTS: u64 = 1_000_000;
    /// What makes no difference: a thousandth of the space.
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
        // As long as an address can name all blocks of a segment.
        let has_names =
            |column: u64| column / BLOCK_BYTES * data_columns <= u64::from(BlockAddr::MAX_BLOCKS);
        let mut column = MOST_BYTES;
        while body_bytes / column > MOST_SEGMENTS && has_names(2 * column) {
            column *= 2;
        }
        column
    })
}

/// Where the log of a log device lies: everything between its labels.
pub(crate) fn log_range(size_bytes: u64) -> (u64, u64) {
    let (start, end) = body_range(size_bytes);
    // More than this is never full: a group is committed long before.
    const MOST: u64 = 16 << 30;
    (start, (end - start).min(MOST))
}

impl Pool {
    /// The id of a member by path, or by the last part of a path when that is unambiguous.
    pub(crate) fn find_member(&self, name: &str) -> Result<MemberConfig, PoolError> {
        let config = self.config.borrow();
        let all: Vec<&MemberConfig> =
            config.data_members().chain(config.logs.iter().flat_map(|ring| &ring.sides)).collect();
        let exact = all.iter().find(|m| m.path == name);
        if let Some(found) = exact {
            return Ok((**found).clone());
        }
        let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
        let mut loose = all.iter().filter(|m| last(&m.path).as_deref() == Some(name));
        match (loose.next(), loose.next()) {
            (Some(found), None) => Ok((**found).clone()),
            (Some(_), Some(_)) => Err(PoolError::new(format!(
                "'{name}' names more than one device of pool '{}'; give the whole path",
                config.name
            ))),
            _ if is_group_name(name) => Err(PoolError::new(format!(
                "'{name}' is a group; name one of its devices: 'forebay pool status {}' lists them",
                config.name
            ))),
            _ => Err(PoolError::new(format!(
                "pool '{}' has no device '{name}'; 'forebay pool status {}' lists them",
                config.name, config.name
            ))),
        }
    }
}

/// The number by which a log device is called, such as 1 in `mirror-1`: data groups are counted first, so
/// that no two have the same name.
pub(crate) fn log_number(config: &PoolConfig, ring: &RingConfig) -> usize {
    config.groups.len() + ring.ring as usize
}

/// Whether `name` is how status shows what stands above devices, such as `raidz1-0`.
fn is_group_name(name: &str) -> bool {
    let Some((kind, number)) = name.rsplit_once('-') else { return false };
    let is_kind = kind == "replacing" || parse_layout(kind).is_some();
    is_kind && number.parse::<u32>().is_ok()
}

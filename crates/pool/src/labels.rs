//! Labels: configurations, superblocks and heartbeat on a device. Written to every copy, read from
//! any.

use std::fmt;
use std::ops::Range;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf};
use forebay_format::FormatError;
use forebay_format::checksum::crc64;
use forebay_format::config::PoolConfig;
use forebay_format::label::{
    CONFIG_SLOT_BYTES, ConfigEnvelope, HEARTBEAT_OFFSET_BYTES, Heartbeat, LOG_MARK_BYTES,
    LOG_MARK_OFFSET_BYTES, LogMark, MIN_DEVICE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES,
    SUPERBLOCK_SLOTS, label_offsets,
};
use forebay_format::superblock::{OLDEST_VERSION, Superblock, VERSION};
use forebay_rt as rt;

use crate::opener::FencedOpener;
use crate::widens::widens;

/// A label that could not be written to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelError {
    /// The configuration does not fit its place.
    Format(FormatError),
    /// The device failed.
    Device(DeviceError),
    /// The device has the label of another pool by now.
    OtherPool {
        /// That pool's id.
        guid: u64,
    },
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "{error}"),
            Self::Device(error) => write!(f, "{error}"),
            Self::OtherPool { guid } => write!(f, "it has the label of another pool, {guid}"),
        }
    }
}

impl LabelError {
    /// Whether the fence refused the write: that says nothing of the device.
    pub(crate) fn is_fence_lost(&self) -> bool {
        matches!(self, Self::Device(error) if matches!(error.kind, ErrorKind::FenceLost(_)))
    }

    /// The device's error, if that is the cause.
    pub(crate) fn device_error(&self) -> Option<&DeviceError> {
        match self {
            Self::Device(error) => Some(error),
            Self::Format(_) | Self::OtherPool { .. } => None,
        }
    }
}

widens!(LabelError: Format(FormatError), Device(DeviceError));

/// Why a region was not written through.
pub(crate) enum WriteThroughError {
    /// The caller was interrupted.
    Unwanted,
    /// The device failed.
    Device(DeviceError),
}

impl From<DeviceError> for WriteThroughError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// The label areas of a device: both, and each alone.
pub(crate) const BOTH_AREAS: Range<usize> = 0..2;
pub(crate) const FIRST_AREA: Range<usize> = 0..1;
pub(crate) const SECOND_AREA: Range<usize> = 1..2;

/// The content of the label areas of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Label {
    /// Readable configurations, newest first.
    pub configs: Vec<(ConfigEnvelope, PoolConfig)>,
    /// Readable superblocks, newest first, without duplicates.
    pub roots: Vec<Superblock>,
    /// The version of intact superblocks that this program does not read.
    pub unknown_version: Option<u32>,
    /// The heartbeat.
    pub heartbeat: Option<Heartbeat>,
    /// Log marks, each with its pool.
    pub log_marks: Vec<(u64, LogMark)>,
}

impl Label {
    /// The configuration that counts on this device alone: the one that its newest root names. A
    /// newer configuration without a root is a change that was not completed. A log device has no
    /// roots; its newest configuration counts.
    pub fn current(&self) -> Option<&(ConfigEnvelope, PoolConfig)> {
        let named = |root: &Superblock| {
            let found = |(envelope, _): &&(ConfigEnvelope, PoolConfig)| {
                envelope.generation == root.config_generation
                    && crc64(&envelope.body) == root.config_sum
            };
            self.configs.iter().find(found)
        };
        self.roots.first().and_then(named).or(self.configs.first())
    }

    /// The configuration with this generation and checksum.
    pub fn config(&self, generation: u64, sum: u64) -> Option<&PoolConfig> {
        let found = |(envelope, _): &&(ConfigEnvelope, PoolConfig)| {
            envelope.generation == generation && crc64(&envelope.body) == sum
        };
        self.configs.iter().find(found).map(|(_, config)| config)
    }
}

/// Reads the label areas of a device. Unreadable parts are left out.
pub(crate) async fn read_label(device: &Device) -> Label {
    let size_bytes = device.geometry().size_bytes;
    let mut label = Label::default();
    if size_bytes < MIN_DEVICE_BYTES {
        return label;
    }
    for area in label_offsets(size_bytes) {
        let ring = IoBuf::zeroed((SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES) as usize);
        if let Ok(ring) = device.read(area + SUPERBLOCK_OFFSET_BYTES, ring).await {
            for slot in ring.chunks(SUPERBLOCK_BYTES as usize) {
                match Superblock::decode(slot) {
                    Ok(root) if label.roots.contains(&root) => {}
                    Ok(root) => label.roots.push(root),
                    Err(_) => {
                        let other = Superblock::version(slot)
                            .filter(|v| !(OLDEST_VERSION..=VERSION).contains(v));
                        label.unknown_version = label.unknown_version.max(other);
                    }
                }
            }
        }
        // After the roots: an owner that writes meanwhile stores a configuration before the root
        // that names it.
        for slot in 0..2 {
            let at = area + slot * CONFIG_SLOT_BYTES;
            let Ok(Some(envelope)) = read_config_slot(device, at).await else { continue };
            // The areas differ in content while a rewind replaces the newest one.
            let known = label.configs.iter().any(|(e, _)| *e == envelope);
            if let (false, Ok(config)) = (known, PoolConfig::decode(&envelope.body)) {
                label.configs.push((envelope, config));
            }
        }
        if label.heartbeat.is_none() {
            if let Ok(block) = device.read(area + HEARTBEAT_OFFSET_BYTES, IoBuf::zeroed(4096)).await
            {
                label.heartbeat = Heartbeat::decode(&block).ok();
            }
        }
    }
    let marks = IoBuf::zeroed(2 * LOG_MARK_BYTES as usize);
    if let Ok(marks) = device.read(LOG_MARK_OFFSET_BYTES, marks).await {
        let blocks = marks.chunks(LOG_MARK_BYTES as usize);
        label.log_marks = blocks.filter_map(|block| LogMark::decode(block).ok()).collect();
    }
    label.configs.sort_by_key(|(envelope, _)| std::cmp::Reverse(envelope.generation));
    label.roots.sort_by_key(|root| std::cmp::Reverse(root.commit));
    label
}

/// The configuration in the slot at `at`; `None` when there is no intact one.
pub(crate) async fn read_config_slot(
    device: &Device,
    at: u64,
) -> Result<Option<ConfigEnvelope>, DeviceError> {
    const FIRST: usize = 16 << 10;
    let head = device.read(at, IoBuf::zeroed(FIRST)).await?;
    if let Ok(envelope) = ConfigEnvelope::decode(&head) {
        return Ok(Some(envelope));
    }
    let whole = device.read(at, IoBuf::zeroed(CONFIG_SLOT_BYTES as usize)).await?;
    Ok(ConfigEnvelope::decode(&whole).ok())
}

/// Writes a configuration to both areas of a device, durably.
pub(crate) async fn write_config(
    device: &Device,
    id: u32,
    config: &PoolConfig,
) -> Result<(), LabelError> {
    write_config_to(device, id, config, BOTH_AREAS).await
}

/// Writes a configuration to some areas of a device, durably.
pub(crate) async fn write_config_to(
    device: &Device,
    id: u32,
    config: &PoolConfig,
    areas: Range<usize>,
) -> Result<(), LabelError> {
    let envelope = ConfigEnvelope {
        pool: config.guid,
        device: id,
        generation: config.generation,
        body: config.encode(),
    };
    let bytes = IoBuf::copy_of(&envelope.encode()?).freeze();
    for area in &label_offsets(device.geometry().size_bytes)[areas] {
        let at = area + ConfigEnvelope::slot_offset_bytes(config.generation);
        device.write(at, bytes.clone(), true).await?;
    }
    Ok(())
}

/// Writes a superblock to both areas of a device, durably.
pub(crate) async fn write_root(device: &Device, root: &Superblock) -> Result<(), DeviceError> {
    let bytes = IoBuf::copy_of(&root.encode()).freeze();
    let areas = label_offsets(device.geometry().size_bytes);
    let writes = areas.map(|area| {
        let at = area + SUPERBLOCK_OFFSET_BYTES + root.slot() * SUPERBLOCK_BYTES;
        device.write(at, bytes.clone(), true)
    });
    for outcome in rt::join_all(writes).await {
        outcome?;
    }
    Ok(())
}

/// Overwrites both label areas, so that nothing of an earlier pool remains there.
pub(crate) async fn clear_label(device: &Device) -> Result<(), DeviceError> {
    const CHUNK: u64 = 128 << 10;
    let zeros = IoBuf::zeroed(CHUNK as usize).freeze();
    for area in label_offsets(device.geometry().size_bytes) {
        for part in 0..forebay_format::label::LABEL_BYTES / CHUNK {
            device.write(area + part * CHUNK, zeros.clone(), false).await?;
        }
    }
    device.flush().await
}

/// Writes once through a region that the log will use, where that makes later writes cheaper: a
/// commit then updates no metadata of a file and cannot run out of space. If it fails, or the
/// caller cancels it, the region is given back.
pub(crate) async fn write_through(
    opener: &FencedOpener,
    device: &Device,
    start_bytes: u64,
    len_bytes: u64,
) -> Result<(), WriteThroughError> {
    const CHUNK: u64 = 4 << 20;
    if !device.allocates_on_write() {
        return Ok(());
    }
    let zeros = IoBuf::zeroed(CHUNK as usize).freeze();
    let mut at = 0;
    let outcome = loop {
        if opener.is_unwanted() {
            break Err(WriteThroughError::Unwanted);
        }
        if at == len_bytes {
            break device.flush().await.map_err(WriteThroughError::from);
        }
        let step = CHUNK.min(len_bytes - at);
        let part = zeros.slice(0, step as usize);
        if let Err(error) = device.write(start_bytes + at, part, false).await {
            break Err(error.into());
        }
        at += step;
    };
    if outcome.is_err() {
        give_back(device, start_bytes, len_bytes).await;
    }
    outcome
}

/// Gives back a region that [`write_through`] has allocated.
pub(crate) async fn give_back(device: &Device, start_bytes: u64, len_bytes: u64) {
    if device.allocates_on_write() {
        // The result does not matter: the device does not belong to the pool.
        let _ = device.discard(start_bytes, len_bytes, false).await;
    }
}

#[cfg(test)]
mod tests;

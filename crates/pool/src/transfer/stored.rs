//! Compressed blocks on their way to another pool: units as they are stored.

use forebay_compress::decompress;
use forebay_device::{Device, DeviceError, IoBuf};
use forebay_format::Encoder;
use forebay_format::packed::MAX_UNIT_BLOCKS;
use forebay_format::stream::{StoredUnit, units_of};
use forebay_map::ExtentKind;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::packed::{PackedPart, WholeUnit};

/// What decompressing a block takes, for the simulation.
const DECOMPRESS_COST: Nanos = Nanos::from_micros(2);

/// What a range holds.
pub(super) enum AsStored {
    /// Blocks.
    Plain(IoBuf),
    /// The payload of a record of compressed data.
    Units(Vec<u8>),
}

impl Pool {
    /// The units of a range of a snapshot, as the payload of a record; `None` when nothing in it is
    /// compressed. Units of which the range has only a part are sent as blocks.
    pub(super) async fn stored_units(
        &self,
        version: VolumeId,
        offset_bytes: u64,
        len_bytes: u64,
        device: &Device,
    ) -> Option<Result<Vec<u8>, DeviceError>> {
        let mut parts = Vec::new();
        let (first, blocks) = (offset_bytes / BLOCK_BYTES, len_bytes / BLOCK_BYTES);
        self.store.map.borrow().lookup_range(version, Lba(first), blocks, |extent| {
            if let ExtentKind::Packed { home, bound, addr } = extent.kind {
                let at_bytes = (extent.lba.0 - first) as usize * BLOCK_LEN;
                let (lba, blocks) = (extent.lba, extent.blocks);
                parts.push(PackedPart { at_bytes, lba, home, bound, addr, blocks });
            }
        });
        if parts.is_empty() {
            return None;
        }
        let units = self.read_units(&parts).await?;
        Some(with_plain(units, offset_bytes, len_bytes as usize, device).await)
    }
}

/// The payload of a range with these units, and with the blocks between them.
async fn with_plain(
    units: Vec<WholeUnit>,
    offset_bytes: u64,
    len: usize,
    device: &Device,
) -> Result<Vec<u8>, DeviceError> {
    let (mut out, mut at) = (Encoder::new(), 0);
    for WholeUnit { at_bytes, blocks, codec, bytes } in units {
        plain(&mut out, at..at_bytes, offset_bytes, device).await?;
        StoredUnit { codec: Some(codec), blocks, bytes: &bytes }.encode(&mut out);
        at = at_bytes + usize::from(blocks) * BLOCK_LEN;
    }
    plain(&mut out, at..len, offset_bytes, device).await?;
    Ok(out.finish())
}

/// Adds the blocks of a range to a payload.
async fn plain(
    out: &mut Encoder,
    range: std::ops::Range<usize>,
    offset_bytes: u64,
    device: &Device,
) -> Result<(), DeviceError> {
    if range.is_empty() {
        return Ok(());
    }
    let at = offset_bytes + range.start as u64;
    let data = device.read(at, IoBuf::recycled(range.len())).await?;
    for bytes in data.chunks(MAX_UNIT_BLOCKS * BLOCK_LEN) {
        let blocks = (bytes.len() / BLOCK_LEN) as u8;
        StoredUnit { codec: None, blocks, bytes }.encode(out);
    }
    Ok(())
}

/// The blocks of a record of compressed data; `None` if a unit is not what it says.
pub(super) async fn expanded(payload: Vec<u8>) -> Option<IoBuf> {
    let cost = Nanos(DECOMPRESS_COST.0 * (payload.len() / BLOCK_LEN) as u64);
    let all = move || {
        let mut data = Vec::new();
        for StoredUnit { codec, blocks, bytes } in units_of(&payload).ok()? {
            match codec {
                None => data.extend_from_slice(bytes),
                Some(codec) => data.extend(decompress(codec, bytes, usize::from(blocks)).ok()?),
            }
        }
        Some(IoBuf::copy_of(&data))
    };
    rt::compute(cost, all).await
}

//! The heartbeat block of one device, and whose it is.

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_format::label::{HEARTBEAT_OFFSET_BYTES, Heartbeat};
use forebay_units::{BLOCK_LEN, OwnerNonce, PoolGuid};

/// A process that has imported, or is importing, a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The pool.
    pub pool: PoolGuid,
    /// Drawn anew at each import.
    pub nonce: OwnerNonce,
}

impl Owner {
    /// The owner that wrote `heartbeat`.
    #[must_use]
    pub fn of(heartbeat: &Heartbeat) -> Self {
        Self { pool: PoolGuid(heartbeat.pool), nonce: OwnerNonce(heartbeat.nonce) }
    }
}

/// Writes a heartbeat, durably.
pub async fn write_heartbeat(device: &Device, heartbeat: &Heartbeat) -> Result<(), DeviceError> {
    let bytes = IoBuf::copy_of(&heartbeat.encode()).freeze();
    device.write(HEARTBEAT_OFFSET_BYTES, bytes, true).await
}

/// Writes a heartbeat that is durable with the next durable write.
pub async fn leave_heartbeat(device: &Device, heartbeat: &Heartbeat) -> Result<(), DeviceError> {
    let bytes = IoBuf::copy_of(&heartbeat.encode()).freeze();
    device.write(HEARTBEAT_OFFSET_BYTES, bytes, false).await
}

/// Reads the heartbeat of a device: `None` if the block holds no valid one, an error if the device
/// cannot be read.
pub async fn read_heartbeat(device: &Device) -> Result<Option<Heartbeat>, DeviceError> {
    let block = device.read(HEARTBEAT_OFFSET_BYTES, IoBuf::zeroed(BLOCK_LEN)).await?;
    Ok(Heartbeat::decode(&block).ok())
}

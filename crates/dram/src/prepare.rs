//! Making log devices in memory: headers, and how fast a backup device is.

use forebay_device::{Device, DeviceError, IoBuf, ZeroOptions};
use forebay_format::dram::{
    BackupHeader, DramPlace, DramProtection, IMAGE_START_BYTES, MemoryHeader, content_start_bytes,
};
use forebay_rt as rt;
use forebay_units::BLOCK_LEN;

use crate::host::Host;
use crate::save::rate;

/// Most bytes that are written to find out how fast a backup device is.
const MEASURED_MAX_BYTES: u64 = 256 << 20;
/// Bytes of a command.
const COMMAND_BYTES: u64 = 1 << 20;

/// A log device in memory that is to be made.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Its size.
    pub size_bytes: u64,
    /// Path of the memory.
    pub memory: String,
    /// What keeps it.
    pub protection: DramProtection,
}

impl Preparation {
    /// Bytes that the backup device needs.
    #[must_use]
    pub fn backup_bytes(&self) -> u64 {
        IMAGE_START_BYTES + self.size_bytes
    }
}

/// Makes `backup` the backup device of a log device of zeros: measures how fast it is, with random
/// content that no device can compress, and takes all its room. Whatever was there is lost.
pub async fn prepare_backup(backup: &Device, preparation: &Preparation) -> Result<(), DeviceError> {
    let Preparation { size_bytes, memory, protection } = preparation.clone();
    // An interruption must leave neither an older header nor a new one.
    backup.write(0, IoBuf::zeroed(2 * BLOCK_LEN).freeze(), true).await?;
    let measured_bytes = size_bytes.min(MEASURED_MAX_BYTES) / COMMAND_BYTES * COMMAND_BYTES;
    // What is allocated first would take longer than what is written over.
    let all = ZeroOptions { fua: true, no_hole: true, fast: false };
    backup.write_zeroes(IMAGE_START_BYTES, size_bytes, all).await?;
    let mut noise = IoBuf::zeroed(COMMAND_BYTES as usize);
    noise.chunks_mut(8).for_each(|word| word.copy_from_slice(&rt::random_u64().to_le_bytes()));
    let noise = noise.freeze();
    let began = rt::now();
    let places: Vec<u64> = (0..measured_bytes).step_by(COMMAND_BYTES as usize).collect();
    for some in places.chunks(8) {
        let writes =
            some.iter().map(|at| backup.write(IMAGE_START_BYTES + at, noise.clone(), false));
        for outcome in rt::join_all(writes).await {
            outcome?;
        }
    }
    backup.flush().await?;
    let save_bytes_per_s = rate(measured_bytes, rt::now().since(began));
    backup.write_zeroes(IMAGE_START_BYTES, measured_bytes, all).await?;
    let header = BackupHeader {
        id: rt::random_u64(),
        sequence: 1,
        generation: 0,
        place: DramPlace::Image,
        size_bytes,
        save_bytes_per_s,
        memory,
        protection,
    };
    let bytes = IoBuf::copy_of(&header.encode()).freeze();
    backup.write(header.slot_bytes(), bytes, true).await
}

/// Makes a log device of zeros in a memory without a backup device.
pub async fn prepare_alone(host: &dyn Host, preparation: &Preparation) -> std::io::Result<()> {
    let Preparation { size_bytes, memory, protection } = preparation.clone();
    let len_bytes = content_start_bytes(size_bytes) + size_bytes;
    let made = host.create_memory(&memory, len_bytes).await?;
    let id = rt::random_u64();
    let header = MemoryHeader { id, generation: 0, size_bytes, alone: Some(protection) };
    made.write(0, &header.encode());
    Ok(())
}

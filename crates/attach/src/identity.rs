//! Identity of an attached volume, which the kernel keeps with the device.

/// A volume, whatever its pool is called now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Volume {
    /// The pool.
    pub pool_guid: u64,
    /// The volume within it; a volume that is made anew under an old name has another one.
    pub volume_id: u32,
}

/// What the kernel keeps with a device, as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The volume.
    pub volume: Volume,
    /// Connections that the device has.
    pub connections: u32,
    /// `POOL/VOL` when it was attached.
    pub name: String,
}

/// The first word of the text.
const WORD: &str = "forebay";

impl Identity {
    /// As text: `forebay:POOL_GUID:VOLUME_ID:CONNECTIONS:POOL/VOL`.
    #[must_use]
    pub fn encode(&self) -> String {
        let Volume { pool_guid, volume_id } = self.volume;
        format!("{WORD}:{pool_guid:016x}:{volume_id}:{}:{}", self.connections, self.name)
    }

    /// A number that stands for it where only a number can be kept (FNV-1a).
    #[must_use]
    pub(crate) fn mark(&self) -> u64 {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        self.encode().bytes().fold(0xcbf2_9ce4_8422_2325, fold)
    }

    /// Reads the text; `None` for a device that another program has attached.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let mut parts = text.trim_end_matches('\n').splitn(5, ':');
        if parts.next()? != WORD {
            return None;
        }
        let pool_guid = u64::from_str_radix(parts.next()?, 16).ok()?;
        let volume_id = parts.next()?.parse().ok()?;
        let connections = parts.next()?.parse().ok()?;
        let name = parts.next().filter(|name| name.contains('/'))?.to_owned();
        Some(Self { volume: Volume { pool_guid, volume_id }, connections, name })
    }
}

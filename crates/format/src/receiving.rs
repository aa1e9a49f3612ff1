//! What the configuration keeps of volumes that are received, in two properties of theirs that no
//! command sets: [`RECEIVING`] while a stream arrives, and [`RECEIVED`] afterwards.

use std::collections::BTreeMap;

use forebay_units::VolumeId;
use serde::{Deserialize, Serialize};

/// The property of a volume that is being received: [`Receiving`] as JSON.
pub const RECEIVING: &str = "receiving";
/// The property with the identities of received snapshots: [`ReceivedGuids`].
pub const RECEIVED: &str = "received";
/// Most identities that are kept of a volume: those of its newest snapshots.
const MAX_RECEIVED: usize = 1000;

/// A volume that is being received. What it held before, if anything, is its snapshot `base`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiving {
    /// Identity of the snapshot that arrives.
    pub guid: u64,
    /// Its name without the volume's.
    pub snapshot: String,
    /// Seconds since 1970 when it was taken.
    pub created_at: u64,
    /// Size of the volume in it.
    pub size_bytes: u64,
    /// `POOL/VOL` that it was sent from.
    pub source: String,
    /// Identity of the base; 0 for a whole volume.
    pub base_guid: u64,
    /// The base here.
    pub base: Option<u32>,
    /// Up to where a root has what was received.
    pub done_bytes: u64,
    /// What was received is kept when the stream is interrupted.
    pub is_resumable: bool,
}

impl Receiving {
    /// The property's value.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("plain data becomes JSON")
    }

    /// From the property's value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// Identities of received snapshots, by their ids here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedGuids(pub BTreeMap<VolumeId, u64>);

impl ReceivedGuids {
    /// The property's value: `ID:GUID,…`, the guids hexadecimal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let skipped = self.0.len().saturating_sub(MAX_RECEIVED);
        let newest = self.0.iter().skip(skipped);
        let each: Vec<String> = newest.map(|(id, guid)| format!("{}:{guid:x}", id.0)).collect();
        each.join(",")
    }

    /// From the property's value. Entries that cannot be read are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let entry = |part: &str| {
            let (id, guid) = part.split_once(':')?;
            Some((VolumeId(id.parse().ok()?), u64::from_str_radix(guid, 16).ok()?))
        };
        Self(text.split(',').filter_map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The next stream goes on from the newest one.
    #[test]
    fn identities_of_the_newest_snapshots_are_kept() {
        let all = (1..=MAX_RECEIVED as u32 + 5).map(|id| (VolumeId(id), u64::from(id) << 40));
        let kept = ReceivedGuids::parse(&ReceivedGuids(all.clone().collect()).to_text());
        assert_eq!(kept.0, all.skip(5).collect());
    }
}

//! Requests and replies of the control socket.

use std::collections::BTreeMap;

use forebay_pool::spec::{CloneSpec, ImportOptions, PoolSpec, VolumeSpec};
use forebay_pool::status::{
    CacheStats, EventRecord, PoolStats, PoolStatus, PoolSummary, Pulse, SnapshotStatus,
    VolumeStatus,
};
use forebay_pool::{ReceiveOptions, SendOptions};
use serde::{Deserialize, Serialize};

use crate::args::ScanVerb;
use crate::drives::Drive;
use crate::explain::Advice;
use crate::failure::Failure;
use crate::taps::Recording;

/// Version of the protocol. Raised when a message changes its meaning; both sides must agree.
pub const PROTOCOL_VERSION: u32 = 1;

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The name of the pool; empty for [`Action::Hello`].
    pub pool: String,
    /// The command as typed, for the pool's history; empty for a request that changes nothing.
    #[serde(default)]
    pub typed: String,
    /// What to do.
    pub action: Action,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields are the arguments of the command of the same name
pub enum Action {
    /// Asks what the server is and serves. Always the first request.
    Hello,
    /// Create the pool, and serve it.
    Create {
        spec: PoolSpec,
    },
    /// Import the pool (a name or guid) from the devices at `paths`, and serve it.
    Import {
        paths: Vec<String>,
        options: ImportOptions,
    },
    /// Stop serving the pool, and export it.
    Export {
        force: bool,
    },
    /// Stop serving the pool, and destroy it.
    Destroy {
        force: bool,
    },
    Status,
    Summary,
    Stats,
    /// What changes with each request.
    Pulse,
    /// Status, summary and uptime in one, for `iostat`.
    Sample,
    History,
    /// The events with numbers above `after`.
    Events {
        after: u64,
    },
    /// What the pool's devices have completed since the last such request, which begins with the
    /// first one and ends without `goes_on`.
    Record {
        goes_on: bool,
    },
    Properties,
    Set {
        property: String,
        value: String,
    },
    Add {
        spec: PoolSpec,
    },
    Remove {
        device: String,
    },
    Attach {
        device: String,
        new_device: String,
        force: bool,
    },
    Detach {
        device: String,
    },
    Replace {
        device: String,
        new_device: Option<String>,
        force: bool,
    },
    Offline {
        device: String,
    },
    Online {
        device: String,
    },
    /// Reset error counters, and take faulted devices back; all devices when none is named.
    Clear {
        device: Option<String>,
    },
    Scrub {
        verb: ScanVerb,
    },
    Resilver,
    /// Commit everything that was written so far.
    Sync,
    /// From the reply on, the connection is one of the kernel's NBD client.
    Nbd,
    /// Perform the requests of the kernel's ublk device `index` on `POOL/VOL`.
    Ublk {
        volume: String,
        index: u32,
    },
    Volumes,
    VolumeCreate {
        spec: VolumeSpec,
    },
    VolumeDestroy {
        volume: String,
        force: bool,
        /// Its snapshots as well.
        #[serde(default)]
        recursive: bool,
    },
    Snapshots,
    /// Takes snapshots `VOL@SNAP`, all at one instant.
    SnapshotTake {
        snapshots: Vec<String>,
    },
    /// Destroys the snapshots of `VOL@SPEC`.
    SnapshotDestroy {
        spec: String,
        force: bool,
    },
    SnapshotRename {
        snapshot: String,
        new_name: String,
        force: bool,
    },
    SnapshotHold {
        snapshot: String,
        tag: String,
        release: bool,
    },
    VolumeRollback {
        snapshot: String,
        /// Destroys the snapshots that were taken since.
        recursive: bool,
        force: bool,
    },
    VolumeRename {
        volume: String,
        new_name: String,
        force: bool,
    },
    VolumeClone {
        snapshot: String,
        spec: CloneSpec,
    },
    VolumePromote {
        volume: String,
        force: bool,
    },
    /// How long a stream would be.
    SendSize {
        options: SendOptions,
    },
    /// After the reply come the frames of a stream, and how it ended.
    Send {
        options: SendOptions,
    },
    /// After the reply the client sends the frames of a stream.
    Receive {
        volume: String,
        options: ReceiveOptions,
    },
    /// Gives up what a volume has of an interrupted stream.
    ReceiveAbandon {
        volume: String,
    },
    /// Brings the pool's format to the newest version.
    Upgrade,
    VolumeResize {
        volume: String,
        size_bytes: u64,
        force: bool,
    },
    VolumeSet {
        volume: String,
        property: String,
        value: String,
    },
}

impl Action {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(
            self,
            Action::Hello
                | Action::Status
                | Action::Summary
                | Action::Stats
                | Action::Pulse
                | Action::Sample
                | Action::History
                | Action::Events { .. }
                | Action::Record { .. }
                | Action::Properties
                | Action::Volumes
                | Action::Snapshots
                | Action::SendSize { .. }
                | Action::Send { .. }
                | Action::Nbd
                | Action::Ublk { .. }
        )
    }

    /// Whether a stream follows its reply.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        matches!(self, Action::Send { .. } | Action::Receive { .. })
    }

    /// Whether it belongs into the pool's history.
    #[must_use]
    pub fn is_remembered(&self) -> bool {
        !self.is_read_only() && *self != Action::Sync
    }
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The request was performed.
    Ok(Reply),
    /// The request failed, and nothing has changed.
    Error(Failure),
}

/// What comes back from a request that was performed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // each has the name of the action that it answers
pub enum Reply {
    Done,
    Hello(Hello),
    Status(Box<StatusReport>),
    Summary(PoolSummary),
    Stats(Box<PoolStats>),
    Pulse(Box<Pulse>),
    Sample(Box<Sample>),
    History(Vec<String>),
    Events(Vec<EventRecord>),
    Recording(Recording),
    Properties(BTreeMap<String, String>),
    Volumes(Vec<VolumeStatus>),
    Snapshots(Vec<SnapshotStatus>),
    SendSize(SendSize),
    Received(ReceivedStream),
}

/// A stream before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSize {
    /// `POOL/VOL@SNAP`.
    pub name: String,
    /// Name of the base without the volume's.
    pub base: Option<String>,
    /// Where it begins in the volume.
    pub start_bytes: u64,
    /// Length of the stream.
    pub len_bytes: u64,
}

/// A stream that was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedStream {
    /// `POOL/VOL@SNAP` that is there now.
    pub name: String,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
}

/// What the server is and serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the server.
    pub version: u32,
    /// The process id of the server.
    pub pid: u32,
    /// Names of the pools that it serves.
    pub pools: Vec<String>,
    /// Whether it takes pools that are created or imported later.
    pub takes_more: bool,
    /// Where volumes can be reached.
    pub listeners: Vec<String>,
}

/// A pool's status with what helps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// What the pool reports.
    #[serde(flatten)]
    pub pool: PoolStatus,
    /// What is wrong, and what to do.
    #[serde(flatten)]
    pub advice: Advice,
    /// The drives below its devices, by the paths of these. Drives are read by a server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drives: BTreeMap<String, Drive>,
}

/// What `iostat` shows, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The device tree with its counters.
    pub status: PoolStatus,
    /// Space.
    pub summary: PoolSummary,
    /// Seconds since import.
    pub uptime_secs: f64,
    /// The read cache.
    #[serde(default)]
    pub cache: CacheStats,
}

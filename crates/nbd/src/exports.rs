//! Exports: names, and the devices behind them.
//!
//! The owner of the volumes implements [`Exports`]; a connection calls it with a name and a
//! [`Peer`], and gets a device. An export stays open until its last connection ends.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device};
use forebay_rt::sync::Notify;

use crate::handshake::{ExportInfo, Refusal};
use crate::limits::Limits;
use crate::message::BlockSizes;
use crate::wire::transmission_flag as flag;

/// A client, as the server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The address that the client connects from, for messages.
    pub address: String,
    /// The uid of the client's process, over a Unix socket.
    pub uid: Option<u32>,
    /// The name that the client's TLS certificate proves: the subject's common name, or else the
    /// first DNS name, e-mail address or URI among its alternative names.
    pub identity: Option<String>,
    /// The kernel of this machine, which the owner has given the connection. It sends requests that
    /// were not answered again, to this server or to the next one.
    pub is_kernel: bool,
}

/// One export in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// The name that a client asks for, such as `POOL/VOLUME`.
    pub name: String,
    /// The description for people; may be empty.
    pub description: String,
}

/// A switch with which the owner of an export ends the connections that hold it.
pub struct Revocation {
    is_revoked: Cell<bool>,
    changed: Rc<Notify>,
}

impl Revocation {
    /// A switch that is not used yet.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { is_revoked: Cell::new(false), changed: Notify::new() })
    }

    /// Ends every connection whose handle has this switch. The server answers the requests in
    /// flight first.
    pub fn revoke(&self) {
        self.is_revoked.set(true);
        self.changed.notify_all();
    }

    /// Whether the owner has revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.get()
    }

    /// Waits until the owner revokes.
    pub async fn revoked(&self) {
        self.changed.until(|| self.is_revoked.get()).await;
    }
}

/// An open export. It closes when the last connection that holds it ends.
pub struct ExportHandle {
    /// The device that requests go to. With `multi_conn`, connections to one export must share one
    /// device, or devices whose flush covers the writes of all of them.
    pub device: Device,
    /// Clients may spread their requests over several connections.
    pub multi_conn: bool,
    /// The description for people; may be empty.
    pub description: String,
    /// Writes are refused, even if the device takes them.
    pub read_only: bool,
    /// Each write is durable before its reply, and the client is told of no cache that it would
    /// have to flush.
    pub write_through: bool,
    /// A use count of the owner, dropped when the connection ends.
    pub hold: Option<Box<dyn Any>>,
    /// Ends the connection when the owner revokes it.
    pub revocation: Option<Rc<Revocation>>,
    /// The bitmaps that clients may ask for.
    pub bitmaps: Option<Rc<dyn Bitmaps>>,
}

/// One run of a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapRun {
    /// Length in bytes.
    pub len_bytes: u64,
    /// The run may have changed.
    pub dirty: bool,
}

/// Named bitmaps of an export: each tells which parts have changed since some time. Clients know
/// them as metadata contexts `qemu:dirty-bitmap:NAME`.
pub trait Bitmaps {
    /// The names.
    fn names(&self) -> Vec<String>;

    /// A part of bitmap `name`: at least one run, from `offset_bytes` on; the runs may end before
    /// the range does. `None` when the bitmap is gone.
    fn runs(&self, name: &str, offset_bytes: u64, len_bytes: u64) -> Option<Vec<BitmapRun>>;
}

impl ExportHandle {
    /// A writable export without a hold.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self {
            device,
            multi_conn: true,
            description: String::new(),
            read_only: false,
            write_through: false,
            hold: None,
            revocation: None,
            bitmaps: None,
        }
    }

    pub(crate) fn info(&self, limits: &Limits) -> ExportInfo {
        let geometry = self.device.geometry();
        let mut flags = flag::HAS_FLAGS | flag::SEND_DF | flag::SEND_CACHE;
        if !self.write_through {
            flags |= flag::SEND_FLUSH | flag::SEND_FUA;
        }
        if self.multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        if self.refuses_writes() {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        let min_bytes = geometry.block_bytes.max(1);
        ExportInfo {
            size_bytes: usable_bytes(&*self.device),
            flags,
            sizes: BlockSizes {
                min_bytes,
                preferred_bytes: min_bytes.max(4096),
                max_bytes: limits.request_max_bytes,
            },
            description: self.description.clone(),
        }
    }

    pub(crate) fn refuses_writes(&self) -> bool {
        self.read_only || self.device.geometry().read_only
    }
}

/// The size that clients see: the whole blocks of the device.
pub(crate) fn usable_bytes(device: &dyn BlockDevice) -> u64 {
    let geometry = device.geometry();
    geometry.size_bytes - geometry.size_bytes % u64::from(geometry.block_bytes.max(1))
}

/// The exports of a server.
pub trait Exports {
    /// The exports that `peer` may see.
    fn list(&self, peer: &Peer) -> Vec<ExportEntry>;

    /// Opens `name` for `peer`. The handshake calls it for information too, so it must be cheap,
    /// and dropping the handle must undo it.
    fn open(&self, name: &str, peer: &Peer) -> Result<ExportHandle, Refusal>;
}

/// A list of exports that never changes.
#[derive(Default)]
pub struct FixedExports {
    entries: Vec<(String, Device)>,
}

impl FixedExports {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export. Clients that give no name get the export with the empty name.
    #[must_use]
    pub fn with(mut self, name: &str, device: Device) -> Self {
        self.entries.push((name.to_owned(), device));
        self
    }
}

impl Exports for FixedExports {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        let entry = |(name, _): &(String, Device)| ExportEntry {
            name: name.clone(),
            description: String::new(),
        };
        self.entries.iter().map(entry).collect()
    }

    fn open(&self, name: &str, _peer: &Peer) -> Result<ExportHandle, Refusal> {
        let found = self.entries.iter().find(|(known, _)| known == name);
        found.map(|(_, device)| ExportHandle::new(device.clone())).ok_or(Refusal::Unknown)
    }
}

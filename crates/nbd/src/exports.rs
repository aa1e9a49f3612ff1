//! What a server offers: names, and the devices behind them.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device};
use forebay_rt::sync::Notify;

use crate::handshake::{ExportFacts, Refusal};
use crate::limits::Limits;
use crate::message::BlockSizes;
use crate::wire::transmission_flag as flag;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Where it connects from, for messages.
    pub address: String,
    /// The uid of the process, when it came over a Unix socket.
    pub uid: Option<u32>,
    /// The name that its TLS certificate proves: the subject's common name, or else the first
    /// DNS name, e-mail address or URI among its alternative names.
    pub identity: Option<String>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// What a client asks for, such as `POOL/VOLUME`.
    pub name: String,
    /// Words for people; may be empty.
    pub description: String,
}

/// How the owner of an export ends the connections that hold it.
pub struct Cut {
    made: Cell<bool>,
    changed: Rc<Notify>,
}

impl Cut {
    /// Not made yet.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { made: Cell::new(false), changed: Notify::new() })
    }

    /// Ends every connection that was given this: what is in flight is answered first.
    pub fn make(&self) {
        self.made.set(true);
        self.changed.notify_all();
    }

    pub(crate) async fn made(&self) {
        self.changed.until(|| self.made.get()).await;
    }
}

/// An open export. It closes when the last connection that holds it ends.
pub struct ExportHandle {
    /// What serves it. Connections to one export must share one device, or devices whose flush
    /// covers the writes of all of them: that is what lets clients use several connections.
    pub device: Device,
    /// Words for people; may be empty.
    pub description: String,
    /// Refuse writes, whatever the device says.
    pub read_only: bool,
    /// Kept until the connection ends: a use count, a hold.
    pub hold: Option<Box<dyn Any>>,
    /// Ends the connection when it is made.
    pub cut: Option<Rc<Cut>>,
}

impl ExportHandle {
    /// A writable export without a hold.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self { device, description: String::new(), read_only: false, hold: None, cut: None }
    }

    pub(crate) fn facts(&self, limits: &Limits) -> ExportFacts {
        let geometry = self.device.geometry();
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_DF
            | flag::SEND_CACHE
            | flag::CAN_MULTI_CONN;
        if self.is_read_only() {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        let min_bytes = geometry.block_bytes.max(1);
        ExportFacts {
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

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.device.geometry().read_only
    }
}

/// The size that clients see: whole blocks only.
pub(crate) fn usable_bytes(device: &dyn BlockDevice) -> u64 {
    let geometry = device.geometry();
    geometry.size_bytes - geometry.size_bytes % u64::from(geometry.block_bytes.max(1))
}

/// What a server asks when clients ask it.
pub trait Exports {
    /// The exports that `peer` may see.
    fn list(&self, peer: &Peer) -> Vec<ExportEntry>;

    /// Opens `name` for `peer`. Called for facts as well as to serve: it must be cheap, and
    /// dropping the handle must undo it.
    fn open(&self, name: &str, peer: &Peer) -> Result<ExportHandle, Refusal>;
}

/// The simplest exports: a list that never changes.
#[derive(Default)]
pub struct FixedExports {
    entries: Vec<(String, Device)>,
}

impl FixedExports {
    /// No exports yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more. The empty name is what clients get that name none.
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

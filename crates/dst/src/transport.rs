//! Transports: how clients reach volumes, directly or through the product's NBD server and client.
//!
//! What always holds: the NBD server runs on the simulated runtime over streams in memory, so
//! everything but the socket is the product's code. Each remote client has its own connections, and
//! flushes through another one than it writes through.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::{BlockDevice, Device};
use forebay_nbd::{Client, ExportEntry, ExportHandle, Exports, Limits, Peer, Refusal, Server};
use forebay_rt::net;
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::model::Model;
use crate::subject::Pool;
use crate::verdict::Kind;

/// The volumes of a pool as NBD exports. The pool reference is weak, so that the pool can be
/// exported while clients are connected.
struct Volumes<P: Pool> {
    pool: Weak<P>,
    /// Open devices by name. All connections to a volume share one device.
    served: RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>,
}

impl<P: Pool> Exports for Volumes<P> {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        let names = self.pool.upgrade().map_or_else(Vec::new, |pool| pool.volumes());
        let entry = |name| ExportEntry { name, description: String::new() };
        names.into_iter().map(entry).collect()
    }

    fn open(&self, name: &str, _peer: &Peer) -> Result<ExportHandle, Refusal> {
        let mut served = self.served.borrow_mut();
        if let Some(device) = served.get(name).and_then(Weak::upgrade) {
            return Ok(ExportHandle::new(device));
        }
        let pool = self.pool.upgrade().ok_or(Refusal::Unknown)?;
        let device = pool.volume(name).ok_or(Refusal::Unknown)?;
        served.insert(name.to_owned(), Rc::downgrade(&device));
        Ok(ExportHandle::new(device))
    }
}

/// Longest read or write through NBD.
pub const REQUEST_MAX_BYTES: u32 = 1 << 20;

/// A server of every volume of `pool`. It has no listener; connections are pairs in memory.
pub fn serve<P: Pool>(pool: &Rc<P>) -> Rc<Server> {
    let exports = Volumes { pool: Rc::downgrade(pool), served: RefCell::default() };
    // Small enough that clients reach the limits, large enough for every write.
    let limits = Limits {
        request_max_bytes: REQUEST_MAX_BYTES,
        connection_bytes_max: 1 << 20,
        total_bytes_max: 2 << 20,
        receive_buffer_bytes: 64 << 10,
        // The deadline is for slow clients, not for hanging disks.
        stall_deadline: Nanos::from_secs(1 << 20),
        ..Limits::default()
    };
    Server::new(Rc::new(exports), limits)
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Everything but flushes.
    Data,
    /// Flushes.
    Flush,
}

/// Connections by volume and purpose, each with the size in sectors at its handshake.
type Connections = BTreeMap<(u32, Purpose), (u64, Rc<Client>)>;

/// How one client reaches volumes.
pub enum Transport<P: Pool> {
    /// Calls the pool.
    Direct(Rc<P>),
    /// Speaks NBD to the server over connections that are opened on demand.
    Remote {
        /// The server.
        server: Rc<Server>,
        /// Open connections.
        connections: RefCell<Connections>,
    },
}

impl<P: Pool> Transport<P> {
    /// A transport through `server`.
    pub fn remote(server: Rc<Server>) -> Self {
        Transport::Remote { server, connections: RefCell::default() }
    }

    /// Opens a volume if clients may use it now. A missing volume that must exist is a failure.
    pub async fn open(&self, model: &Model, volume: u32, purpose: Purpose) -> Option<Device> {
        model.usable(volume, 0, 1)?;
        match self {
            Transport::Direct(pool) => {
                let device = model.open_by(volume, |name| pool.volume(name));
                // Until it is answered, a creation may fail, and a destruction takes effect.
                if device.is_none() && model.must_be_there(volume) {
                    let name = model.name_of(volume);
                    model.object(Kind::Volumes, format!("{name} is not there"));
                }
                device
            }
            Transport::Remote { server, connections } => {
                open_remote(server, connections, model, volume, purpose).await
            }
        }
    }
}

impl<P: Pool> Transport<P> {
    /// True when a direct call finds the volume.
    pub fn is_there(&self, model: &Model, volume: u32) -> bool {
        match self {
            Transport::Direct(pool) => model.open_by(volume, |name| pool.volume(name)).is_some(),
            Transport::Remote { .. } => false,
        }
    }

    /// True when the client speaks NBD.
    pub fn is_remote(&self) -> bool {
        matches!(self, Transport::Remote { .. })
    }

    /// Ends the client's connections. The next act opens others.
    pub fn disconnect(&self) {
        if let Transport::Remote { connections, .. } = self {
            connections.borrow_mut().clear();
        }
    }

    /// The open NBD connection for data of a volume, if there is one.
    pub fn connection(&self, volume: u32) -> Option<Rc<Client>> {
        let Transport::Remote { connections, .. } = self else { return None };
        let connections = connections.borrow();
        connections.get(&(volume, Purpose::Data)).map(|(_, client)| client.clone())
    }

    /// Connects to an export that does not exist. Objects when the server grants it.
    pub async fn connect_to_none(&self, model: &Model) {
        let Transport::Remote { server, .. } = self else { return };
        let (here, there) = net::pair();
        if !server.adopt(there) {
            return model.object(Kind::Volumes, "the NBD server refused a connection: too many");
        }
        match Client::over(here, "none", "nbd none").await {
            Ok(_) => model.object(Kind::Volumes, "an export that does not exist was opened"),
            Err(_) => model.count("requests refused: NoExport", 1),
        }
    }
}

async fn open_remote(
    server: &Rc<Server>,
    connections: &RefCell<Connections>,
    model: &Model,
    volume: u32,
    purpose: Purpose,
) -> Option<Device> {
    let sectors = model.update(volume, |v| v.history.sectors())?;
    let known = connections.borrow().get(&(volume, purpose)).cloned();
    // A client learns a new size only by a new connection.
    if let Some((at_open, client)) = known {
        if at_open == sectors {
            return Some(client as Device);
        }
    }
    let (here, there) = net::pair();
    if !server.adopt(there) {
        model.object(Kind::Volumes, "the NBD server refused a connection: too many");
        return None;
    }
    let name = model.name_of(volume);
    let client = match Client::over(here, &name, &format!("nbd {name}")).await {
        Ok(client) => Rc::new(client),
        Err(error) => {
            // The volume may have been destroyed during the handshake, or renamed.
            let has_its_name = model.names_of(volume) == [name];
            if has_its_name && model.usable(volume, 0, 1).is_some() {
                model.error_seen("NBD handshake", &error);
            }
            return None;
        }
    };
    model.count("NBD connections", 1);
    let at_open = client.size_bytes() / SECTOR_BYTES;
    connections.borrow_mut().insert((volume, purpose), (at_open, client.clone()));
    Some(client as Device)
}

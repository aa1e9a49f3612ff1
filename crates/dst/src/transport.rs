//! How clients reach volumes: directly, or through the NBD server and client of the product.
//!
//! The server runs on the simulated runtime over streams in memory: handshake, requests, replies
//! and their order are the product's, only the socket is not. Each remote client has connections
//! of its own; it sends its flushes through another one than its writes, so that every flush must
//! cover what was answered elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::{BlockDevice, Device};
use forebay_nbd::{Client, ExportEntry, ExportHandle, Exports, Limits, Peer, Refusal, Server};
use forebay_rt::net;
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::model::{Model, volume_name};
use crate::subject::Pool;
use crate::verdict::Kind;

/// The volumes of a pool as exports. Does not keep the pool alive: it must be possible to export
/// it while clients are still there.
struct Volumes<P: Pool> {
    pool: Weak<P>,
    /// What is served now, by name: all connections to a volume share one device.
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

/// A server of every volume of `pool`, without a listener: connections are pairs in memory.
pub fn serve<P: Pool>(pool: &Rc<P>) -> Rc<Server> {
    let exports = Volumes { pool: Rc::downgrade(pool), served: RefCell::default() };
    // Small enough that clients run into them now and then, never so small that a write is cut.
    let limits = Limits {
        request_max_bytes: 1 << 20,
        connection_bytes_max: 1 << 20,
        total_bytes_max: 2 << 20,
        receive_buffer_bytes: 64 << 10,
        // A disk that hangs for long is not the client's fault.
        stall_deadline: Nanos::from_secs(1 << 20),
        ..Limits::default()
    };
    Server::new(Rc::new(exports), limits)
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Reads and writes.
    Data,
    /// Flushes.
    Flush,
}

/// Connections by volume and purpose, each with the size that it was told, in sectors.
type Connections = BTreeMap<(u32, Purpose), (u64, Rc<Client>)>;

/// A client's way in.
pub enum Transport<P: Pool> {
    /// Calls the pool.
    Direct(Rc<P>),
    /// Talks NBD to the server, over connections that are opened when they are needed.
    Remote {
        /// Who answers.
        server: Rc<Server>,
        /// What is open.
        connections: RefCell<Connections>,
    },
}

impl<P: Pool> Transport<P> {
    /// Through `server`.
    pub fn remote(server: Rc<Server>) -> Self {
        Transport::Remote { server, connections: RefCell::default() }
    }

    /// The volume, if it may be used now. One that should be there and is not is an objection.
    pub async fn open(&self, model: &Model, volume: u32, purpose: Purpose) -> Option<Device> {
        model.usable(volume, 0, 1)?;
        let name = volume_name(volume);
        match self {
            Transport::Direct(pool) => {
                let device = pool.volume(&name);
                if device.is_none() {
                    model.object(Kind::Volumes, format!("{name} is not there"));
                }
                device
            }
            Transport::Remote { server, connections } => {
                let sectors = model.update(volume, |v| v.history.sectors())?;
                let known = connections.borrow().get(&(volume, purpose)).cloned();
                // A client learns of another size only when it connects anew.
                if let Some((at_open, client)) = known
                    && at_open == sectors
                {
                    return Some(client as Device);
                }
                let (here, there) = net::pair();
                if !server.adopt(there) {
                    model.object(Kind::Volumes, "the NBD server has no room for one more client");
                    return None;
                }
                let client = match Client::over(here, &name, &format!("nbd {name}")).await {
                    Ok(client) => Rc::new(client),
                    Err(error) => {
                        // It may have been destroyed while we knocked.
                        if model.usable(volume, 0, 1).is_some() {
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
        }
    }
}

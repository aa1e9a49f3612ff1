//! Log devices on other hosts: the product's client and server, and a network between them that
//! fails.
//!
//! What always holds: bytes arrive in order or not at all. While the network is down they wait in
//! it, as do ends of connections; so a side may believe in a connection that the other has lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::layers::SingleWriter;
use forebay_device::{Device, DeviceError, ErrorKind, Operation};
use forebay_nbd::{Client, ExportEntry, ExportHandle, Exports, Limits, Peer, Refusal, Server};
use forebay_rt as rt;
use forebay_rt::net::{Stream, pair};
use forebay_rt::sync::Notify;
use forebay_sim::World;
use forebay_units::Nanos;

use crate::scenario::{Network, TimedNetwork};

/// How long a host may take to answer when it is connected to, as the product has it.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(5);
/// The longest pause after an outage until bytes are sent again that were lost in it.
const RETRANSMISSION_MAX: Nanos = Nanos::from_secs(8);
const PIECE_BYTES: usize = 64 << 10;
const EXPORT: &str = "log";

/// The network between the pool's machine and one other host.
#[derive(Default)]
struct Link {
    is_down: Cell<bool>,
    /// How often it has gone down.
    outages: Cell<u64>,
    /// The longest delay of what passes.
    delay: Cell<Nanos>,
    changed: Rc<Notify>,
    /// Ends of connections at the other host.
    far: RefCell<Vec<Weak<Stream>>>,
}

impl Link {
    /// Lets bytes of a connection pass that knows of `known` outages.
    async fn pass(&self, known: &Cell<u64>) {
        while known.get() != self.outages.get() || self.is_down.get() {
            self.changed.until(|| !self.is_down.get()).await;
            // What was lost is sent again, at growing intervals: newer connections overtake it.
            if known.replace(self.outages.get()) != self.outages.get() {
                rt::sleep(Nanos(rt::random_below(RETRANSMISSION_MAX.0))).await;
            }
        }
        let delay = self.delay.get();
        if delay > Nanos::ZERO {
            rt::sleep(Nanos(rt::random_below(delay.0))).await;
        }
    }

    /// Carries bytes one way, and the end of the connection after them.
    async fn carry(self: Rc<Self>, from: Rc<Stream>, to: Rc<Stream>) {
        let known = Cell::new(self.outages.get());
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let (received, back) = from.recv(piece, 0).await;
            piece = back;
            let Ok(len @ 1..) = received else { break };
            self.pass(&known).await;
            if to.send_all(piece[..len].to_vec()).await.0.is_err() {
                break;
            }
        }
        self.pass(&known).await;
        to.shutdown();
        from.shutdown();
    }
}

/// A log device that another host serves.
pub struct RemoteLog {
    name: String,
    link: Rc<Link>,
    server: Rc<Server>,
}

struct OneExport(Rc<SingleWriter>);

impl Exports for OneExport {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn open(&self, name: &str, _peer: &Peer) -> Result<ExportHandle, Refusal> {
        match name == EXPORT {
            true => Ok(ExportHandle { multi_conn: false, ..ExportHandle::new(self.0.open()) }),
            false => Err(Refusal::Unknown),
        }
    }
}

impl RemoteLog {
    /// The name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens it over a new connection.
    pub async fn open(&self) -> Result<Device, DeviceError> {
        let failed = |kind| DeviceError::new(&self.name, Operation::Open, 0, 0, kind);
        let connecting = async {
            self.link.pass(&Cell::new(self.link.outages.get())).await;
            let ((near, here), (there, far)) = (pair(), pair());
            let (here, there) = (Rc::new(here), Rc::new(there));
            if !self.server.adopt(far) {
                return Err(failed(ErrorKind::Gone));
            }
            self.link.far.borrow_mut().retain(|stream| stream.strong_count() > 0);
            self.link.far.borrow_mut().push(Rc::downgrade(&there));
            let link = self.link.clone();
            rt::spawn_detached(Box::pin(link.carry(here.clone(), there.clone())));
            let link = self.link.clone();
            rt::spawn_detached(Box::pin(link.carry(there, here)));
            let client = Client::over(near, EXPORT, &self.name).await;
            client.map_err(|_| failed(ErrorKind::Gone))
        };
        match rt::timeout(CONNECT_TIMEOUT, Box::pin(connecting)).await {
            Ok(client) => Ok(Rc::new(client?)),
            Err(rt::Elapsed) => {
                let after_secs = CONNECT_TIMEOUT.0 / 1_000_000_000;
                Err(failed(ErrorKind::TimedOut { after_secs }))
            }
        }
    }
}

/// The networks of a run, by disk. They are up when a boot begins.
pub(crate) struct Networks(BTreeMap<usize, Rc<Link>>);

impl Networks {
    pub fn new(disks: impl Iterator<Item = usize>) -> Self {
        Self(disks.map(|disk| (disk, Rc::default())).collect())
    }

    /// The other hosts of a boot, which serve `devices`.
    pub fn start(&self, devices: &[Device]) -> Vec<Rc<RemoteLog>> {
        let remote = |(disk, link): (&usize, &Rc<Link>)| {
            link.mend();
            link.delay.set(Nanos::from_micros(200));
            link.far.take();
            let device = devices[*disk].clone();
            let (name, link) = (device.name().to_owned(), link.clone());
            let exports = OneExport(SingleWriter::new(device));
            let server = Server::new(Rc::new(exports), Limits::default());
            Rc::new(RemoteLog { name, link, server })
        };
        self.0.iter().map(remote).collect()
    }

    /// Has networks fail and recover at their commands; `strike` is told of each failure.
    pub fn schedule(
        &self,
        world: &Rc<World>,
        changes: &[TimedNetwork],
        strike: impl Fn(usize) + 'static,
    ) {
        let strike = Rc::new(strike);
        for timed in changes.iter().copied() {
            let Some(link) = self.0.get(&timed.disk).cloned() else { continue };
            let (inner, strike) = (world.clone(), strike.clone());
            let change = move || {
                inner.tell(|| format!("network of disk {}: {:?}", timed.disk, timed.network));
                match timed.network {
                    Network::Up => return link.mend(),
                    Network::Slow { ms } => link.delay.set(Nanos::from_millis(ms)),
                    Network::Down => {
                        link.is_down.set(true);
                        link.outages.set(link.outages.get() + 1);
                    }
                    Network::Restart => {
                        let far = link.far.take();
                        far.iter().filter_map(Weak::upgrade).for_each(|s| s.shutdown());
                    }
                }
                strike(timed.disk);
            };
            match timed.at_command {
                0 => change(),
                at_command => world.at_command(at_command, change),
            }
        }
    }

    /// Brings all networks up.
    pub fn end_faults(&self) {
        self.0.values().for_each(|link| link.mend());
    }
}

impl Link {
    fn mend(&self) {
        self.is_down.set(false);
        self.changed.notify_all();
    }
}

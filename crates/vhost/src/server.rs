//! The server: a socket a disk, and one front end at a time on each.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};
use forebay_rt::sync::{Notify, Semaphore};
use forebay_units::Nanos;

use crate::limits::Limits;
use crate::request::Target;
use crate::ring::Shared;
use crate::session::{Ending, Session};

/// Mode of the sockets: the group of the folder may connect.
const SOCKET_MODE: u32 = 0o660;
/// Time between two attempts to accept after a failed one.
const ACCEPT_RETRY_INTERVAL: Nanos = Nanos::from_millis(100);

/// An open disk. It closes when the connection that holds it ends.
pub struct Disk {
    /// The device that requests go to.
    pub device: Device,
    /// Writes are refused, even if the device takes them.
    pub read_only: bool,
    /// A use count of the owner, dropped when the connection ends.
    pub hold: Option<Box<dyn Any>>,
    /// Completes when the owner ends the connection.
    pub revoked: Pin<Box<dyn Future<Output = ()>>>,
}

/// The owner of the disks.
pub trait Disks {
    /// The names of all disks, such as `POOL/VOLUME`.
    fn names(&self) -> Vec<String>;

    /// Opens a disk for a front end, which `peer` names. `None` when there is none of that name.
    fn open(&self, name: &str, peer: &str) -> Option<Disk>;
}

/// What the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A disk has no socket.
    NoSocket {
        /// The disk.
        name: String,
        /// Where its socket should be.
        path: PathBuf,
        /// Why it is not there.
        reason: String,
    },
    /// A front end came while another one has the disk.
    Refused {
        /// The disk.
        name: String,
        /// The front end that was refused.
        peer: String,
    },
    /// A front end or its guest broke the rules, and lost its connection.
    Broken {
        /// The disk.
        name: String,
        /// The front end.
        peer: String,
        /// What was wrong.
        reason: String,
    },
    /// A guest takes writes for written that an earlier run of the server has lost.
    LostWrites {
        /// The disk.
        name: String,
    },
}

/// Serves disks to virtual machines.
pub struct Server {
    disks: Rc<dyn Disks>,
    folder: PathBuf,
    limits: Limits,
    total_bytes: Rc<Semaphore>,
    sockets: RefCell<BTreeMap<String, Rc<Socket>>>,
    /// Disks whose socket could not be made, so that it is reported once.
    failed: RefCell<BTreeMap<String, String>>,
    events: Rc<RefCell<Vec<Event>>>,
    open: Cell<usize>,
    is_stopping: Rc<Cell<bool>>,
    changed: Rc<Notify>,
    run: u64,
}

/// The socket of one disk.
struct Socket {
    listener: Listener,
    is_closed: Cell<bool>,
    is_busy: Cell<bool>,
}

impl Server {
    /// A server of `disks` with its sockets in `folder`, which must be there.
    pub fn new(disks: Rc<dyn Disks>, folder: &Path, limits: Limits) -> io::Result<Rc<Self>> {
        let folder = std::path::absolute(folder)?;
        if !folder.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Rc::new(Self {
            disks,
            folder,
            limits,
            total_bytes: Semaphore::new(limits.total_bytes_max),
            sockets: RefCell::default(),
            failed: RefCell::default(),
            events: Rc::default(),
            open: Cell::new(0),
            is_stopping: Rc::default(),
            changed: Notify::new(),
            run: rt::random_u64().max(1),
        }))
    }

    /// The socket of the disk `name`.
    #[must_use]
    pub fn socket_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    /// Makes the sockets of new disks, and removes those of disks that are gone. To be called when
    /// disks may have come or gone.
    pub fn update(self: &Rc<Self>) {
        if self.is_stopping.get() {
            return;
        }
        let names = self.disks.names();
        self.sockets.borrow_mut().retain(|name, socket| {
            let stays = names.contains(name);
            if !stays {
                socket.close();
            }
            stays
        });
        self.failed.borrow_mut().retain(|name, _| names.contains(name));
        for name in names {
            if self.sockets.borrow().contains_key(&name) {
                continue;
            }
            match self.listen(&name) {
                Ok(()) => {
                    self.failed.borrow_mut().remove(&name);
                }
                Err(e) => self.note_failed(name, e.to_string()),
            }
        }
    }

    fn note_failed(&self, name: String, reason: String) {
        let known = self.failed.borrow_mut().insert(name.clone(), reason.clone());
        if known.as_ref() != Some(&reason) {
            let path = self.socket_path(&name);
            self.events.borrow_mut().push(Event::NoSocket { name, path, reason });
        }
    }

    fn listen(self: &Rc<Self>, name: &str) -> io::Result<()> {
        let path = self.socket_path(name);
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            std::fs::create_dir(folder)?;
        }
        let listener = Listener::bind_unix(&path, SOCKET_MODE)?;
        let socket =
            Rc::new(Socket { listener, is_closed: Cell::new(false), is_busy: Cell::new(false) });
        self.sockets.borrow_mut().insert(name.to_owned(), socket.clone());
        rt::spawn(self.clone().accept_all(name.to_owned(), socket));
        Ok(())
    }

    async fn accept_all(self: Rc<Self>, name: String, socket: Rc<Socket>) {
        while !socket.is_closed.get() {
            match socket.listener.accept().await {
                Ok(stream) => self.clone().adopt(&name, &socket, stream),
                Err(_) if socket.is_closed.get() => break,
                Err(_) => rt::sleep(ACCEPT_RETRY_INTERVAL).await,
            }
        }
    }

    fn adopt(self: Rc<Self>, name: &str, socket: &Rc<Socket>, stream: Stream) {
        let peer = stream.peer().to_owned();
        if socket.is_busy.replace(true) {
            self.events.borrow_mut().push(Event::Refused { name: name.to_owned(), peer });
            return;
        }
        self.open.set(self.open.get() + 1);
        let (name, socket) = (name.to_owned(), socket.clone());
        rt::spawn(async move {
            if let Some(disk) = self.disks.open(&name, &peer) {
                self.serve(&name, &peer, disk, stream).await;
            }
            socket.is_busy.set(false);
            self.open.set(self.open.get() - 1);
            self.changed.notify_all();
        });
    }

    async fn serve(&self, name: &str, peer: &str, disk: Disk, stream: Stream) {
        let Disk { device, read_only, hold, revoked } = disk;
        let shared = Rc::new(self.shared_of(name, device, read_only));
        let session = Session::new(shared.clone());
        let end = async {
            let stop = std::pin::pin!(self.changed.until(|| self.is_stopping.get()));
            rt::select(revoked, stop).await;
            // The session ends as if the front end had hung up.
            stream.shutdown();
            std::future::pending::<()>().await;
        };
        let served = session.serve(&stream, self.limits.message_deadline);
        let ending = match rt::select(std::pin::pin!(served), std::pin::pin!(end)).await {
            rt::Either::Left((ending, _)) => ending,
            rt::Either::Right(_) => unreachable!("it never completes"),
        };
        // A front end that comes back finds nothing that a flush must still cover.
        if shared.target.is_unflushed() && shared.target.flush().await.is_ok() {
            shared.note_unflushed();
        }
        if let Ending::Broken(reason) = ending {
            let (name, peer) = (name.to_owned(), peer.to_owned());
            self.events.borrow_mut().push(Event::Broken { name, peer, reason });
        }
        drop(hold);
    }

    fn shared_of(&self, name: &str, device: Device, read_only: bool) -> Shared {
        Shared {
            target: Target {
                device,
                id: serial_of(name),
                read_only,
                flushes: Cell::new(false),
                is_writeback: Cell::new(true),
                request_max_bytes: self.limits.request_max_bytes,
                must_fail_flush: Cell::new(false),
                cached_writes: Cell::new(0),
                flushed_writes: Cell::new(0),
            },
            broken: Cell::new(None),
            changed: Notify::new(),
            in_flight: Cell::new(0),
            takers: Cell::new(0),
            is_paused: Cell::new(false),
            connection_bytes: Semaphore::new(self.limits.connection_bytes_max),
            total_bytes: self.total_bytes.clone(),
            taken: Cell::new(0),
            is_stopping: self.is_stopping.clone(),
            run: self.run,
            name: name.to_owned(),
            events: self.events.clone(),
            inflight: RefCell::default(),
        }
    }

    /// Front ends that are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.get()
    }

    /// What has happened since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.events.take()
    }

    /// Stops the server: finishes the requests in flight, flushes, and removes the sockets. Returns
    /// how many connections it abandoned because their device did not answer within `deadline`.
    pub async fn stop(&self, deadline: Nanos) -> usize {
        self.is_stopping.set(true);
        for socket in self.sockets.take().into_values() {
            socket.close();
        }
        self.changed.notify_all();
        let over = self.changed.until(|| self.open.get() == 0);
        let _ = rt::timeout(deadline, over).await;
        self.open.get()
    }
}

impl Socket {
    fn close(&self) {
        self.is_closed.set(true);
        self.listener.shutdown();
    }
}

/// The serial number of a disk: its name, as far as 20 bytes go. A longer name ends in a checksum
/// of all of it.
fn serial_of(name: &str) -> String {
    const MAX_BYTES: usize = 20;
    let plain = name.replace('/', "-");
    if plain.len() <= MAX_BYTES {
        return plain;
    }
    let sum = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut end = MAX_BYTES - 9;
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{:08x}", &plain[..end], (sum >> 32) as u32 ^ sum as u32)
}

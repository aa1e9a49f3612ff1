//! One connection of a front end: its messages, and the rings that they set up.
//!
//! The crate `vhost` receives a message with calls that block. So a message is handled only when
//! all of it has arrived and there is room for the reply: no front end can hold up this thread.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_units::Nanos;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandler};

use crate::config::{CONFIG_BYTES, WRITEBACK_OFFSET, config_space, feature, features};
use crate::inflight::Inflight;
use crate::limits::{MEMORY_SLOTS_MAX, QUEUE_SIZE_MAX, QUEUES_MAX};
use crate::memory::{Memory, Slots, invalid};
use crate::ring::{Addresses, Ring, Shared};
use crate::server::Event;

const HEADER_BYTES: usize = 12;
/// The longest message that a front end may send.
const MESSAGE_MAX_BYTES: usize = 4096;
/// Between two looks for the rest of a message.
const REST_INTERVAL: Nanos = Nanos::from_millis(1);
/// Between two looks at the size of the disk.
const SIZE_INTERVAL: Nanos = Nanos::from_millis(500);
/// Codes of messages that leave the rings alone: all GET but that of a ring's base, and CALL, ERR,
/// SET_OWNER, SET_BACKEND_REQ_FD, SET_CONFIG, SET_PROTOCOL_FEATURES.
const QUIET_CODES: [u32; 12] = [1, 3, 13, 14, 15, 16, 17, 21, 24, 25, 31, 36];

const SET_BACKEND_REQ_FD: u32 = 21;
/// A message to the front end.
const CONFIG_CHANGE: u32 = 2;
/// Flags of messages.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The front end has hung up.
    Disconnected,
    /// The server is stopping, or the disk is gone.
    Stopped,
    /// The front end or its guest broke the rules; with what.
    Broken(String),
}

/// One connection.
pub(crate) struct Session {
    shared: Rc<Shared>,
    rings: RefCell<Vec<Rc<Ring>>>,
    memory: RefCell<Option<Rc<Memory>>>,
    /// What `memory` maps.
    slots: RefCell<Slots>,
    features: Cell<u64>,
    to_front: RefCell<Option<Stream>>,
    known_size_bytes: Cell<u64>,
}

impl Session {
    // The crate `vhost` wants an `Arc`; all of its clones stay on this thread.
    #[expect(clippy::arc_with_non_send_sync, reason = "the library asks for an Arc")]
    pub(crate) fn new(shared: Rc<Shared>) -> Arc<Self> {
        let known_size_bytes = Cell::new(shared.target.device.geometry().size_bytes);
        Arc::new(Self {
            shared,
            rings: RefCell::default(),
            memory: RefCell::default(),
            slots: RefCell::default(),
            features: Cell::new(0),
            to_front: RefCell::default(),
            known_size_bytes,
        })
    }

    /// Serves `stream` until its end; requests in flight are finished then.
    pub(crate) async fn serve(self: &Arc<Self>, stream: &Stream, deadline: Nanos) -> Ending {
        let ending = {
            let conversation = std::pin::pin!(self.converse(stream, deadline));
            let resizes = std::pin::pin!(self.watch_size());
            let broken =
                std::pin::pin!(self.shared.changed.until(|| self.shared.broken.get().is_some()));
            let other = std::pin::pin!(async { rt::select(resizes, broken).await });
            match rt::select(conversation, other).await {
                rt::Either::Left((ending, _)) => ending,
                rt::Either::Right(_) => Ending::Stopped,
            }
        };
        stream.shutdown();
        self.pause().await;
        match self.shared.broken.get() {
            Some(reason) => Ending::Broken(reason.to_owned()),
            None => ending,
        }
    }

    async fn converse(self: &Arc<Self>, stream: &Stream, deadline: Nanos) -> Ending {
        let socket = match stream.duplicate() {
            Ok(socket) => socket,
            Err(e) => return Ending::Broken(format!("no descriptor for its socket: {e}")),
        };
        let mut handler = BackendReqHandler::from_stream(socket.into(), self.clone());
        loop {
            let code = match next_message(stream, deadline).await {
                Ok(Some(code)) => code,
                Ok(None) => return Ending::Disconnected,
                Err(e) => return Ending::Broken(e.to_string()),
            };
            let is_quiet = QUIET_CODES.contains(&code);
            if !is_quiet {
                self.pause().await;
            }
            if code == SET_BACKEND_REQ_FD {
                match self.take_channel(stream) {
                    Ok(()) => continue,
                    Err(e) => return Ending::Broken(format!("message {code}: {e}")),
                }
            }
            let handled = handler.handle_request();
            if self.shared.broken.get().is_some() {
                return Ending::Stopped;
            }
            match handled {
                Ok(()) => {}
                Err(Error::Disconnected) => return Ending::Disconnected,
                Err(e) => return Ending::Broken(format!("message {code}: {e}")),
            }
            if !is_quiet {
                self.resume();
            }
        }
    }

    /// Tells the front end when the disk has another size.
    async fn watch_size(&self) {
        loop {
            rt::sleep(SIZE_INTERVAL).await;
            let size = self.shared.target.device.geometry().size_bytes;
            let to_front = self.to_front.borrow();
            let Some(to_front) = to_front.as_ref().filter(|_| size != self.known_size_bytes.get())
            else {
                continue;
            };
            // A front end that leaves no room for 12 bytes is told later.
            if to_front.try_send(&header_of(CONFIG_CHANGE, VERSION, 0)) == HEADER_BYTES {
                self.known_size_bytes.set(size);
            }
        }
    }

    /// Takes the socket for messages to the front end. The crate `vhost` has no message that tells
    /// of a change of the configuration, and keeps the socket to itself.
    fn take_channel(&self, stream: &Stream) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        let (got, channel) = stream.receive_socket(&mut header)?;
        if got != HEADER_BYTES || header[8..] != [0; 4] {
            return Err(invalid("it has a length that makes no sense"));
        }
        let channel = channel.ok_or_else(|| invalid("it came without a socket"))?;
        *self.to_front.borrow_mut() = Some(channel);
        if header[4] & NEED_REPLY as u8 != 0 {
            let mut reply = header_of(SET_BACKEND_REQ_FD, VERSION | REPLY, 8).to_vec();
            reply.extend([0; 8]);
            if stream.try_send(&reply) != reply.len() {
                return Err(invalid("there is no room for its reply"));
            }
        }
        Ok(())
    }

    /// Waits until no request is taken any more and none is in flight.
    async fn pause(&self) {
        let shared = &self.shared;
        shared.is_paused.set(true);
        shared.changed.notify_all();
        shared.changed.until(|| shared.takers.get() == 0 && shared.in_flight.get() == 0).await;
        shared.is_paused.set(false);
    }

    fn resume(&self) {
        let Some(memory) = self.memory.borrow().clone() else { return };
        let has_event_index = self.features.get() & feature::EVENT_INDEX != 0;
        for ring in &*self.rings.borrow() {
            ring.start(&memory, has_event_index);
        }
    }

    fn map_slots(&self) -> Result<()> {
        let memory = self.slots.borrow().map().map_err(bad)?;
        *self.memory.borrow_mut() = Some(Rc::new(memory));
        Ok(())
    }

    fn ring(&self, index: u32) -> Result<Rc<Ring>> {
        let index = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        if index >= QUEUES_MAX {
            return Err(Error::InvalidParam);
        }
        let mut rings = self.rings.borrow_mut();
        while rings.len() <= usize::from(index) {
            let next = rings.len() as u16;
            rings.push(Ring::new(next, self.shared.clone()));
        }
        Ok(rings[usize::from(index)].clone())
    }

    fn forget_rings(&self) {
        for ring in &*self.rings.borrow() {
            ring.reset();
        }
    }

    fn space(&self) -> [u8; CONFIG_BYTES] {
        let target = &self.shared.target;
        config_space(&target.device.geometry(), target.is_writeback.get())
    }

    fn offered(&self) -> u64 {
        let target = &self.shared.target;
        features(target.read_only || target.device.geometry().read_only)
    }
}

/// Waits until a whole message has arrived and its reply finds room. Returns the message's code;
/// `None` at the end of the stream.
async fn next_message(stream: &Stream, deadline: Nanos) -> io::Result<Option<u32>> {
    stream.readable().await?;
    let arrival = async {
        let mut header = [0; HEADER_BYTES];
        loop {
            match stream.peek(&mut header) {
                Ok(0) => return Ok(None),
                Ok(HEADER_BYTES) => {
                    let word = |at: usize| {
                        u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"))
                    };
                    let body = word(8) as usize;
                    if body > MESSAGE_MAX_BYTES {
                        return Err(io::Error::other(format!("a message of {body} bytes")));
                    }
                    if stream.arrived_bytes()? >= HEADER_BYTES + body {
                        stream.writable().await?;
                        return Ok(Some(word(0)));
                    }
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e),
            }
            rt::sleep(REST_INTERVAL).await;
        }
    };
    match rt::timeout(deadline, arrival).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::Error::other("a message that does not arrive as a whole")),
    }
}

/// The header of a message to the front end.
fn header_of(code: u32, flags: u32, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&code.to_ne_bytes());
    header[4..8].copy_from_slice(&flags.to_ne_bytes());
    header[8..].copy_from_slice(&body_bytes.to_ne_bytes());
    header
}

const NOT_OFFERED: Error = Error::InvalidOperation("it was not offered");

fn bad(e: io::Error) -> Error {
    Error::ReqHandlerError(e)
}

impl VhostUserBackendReqHandler for Session {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        self.forget_rings();
        Ok(())
    }

    fn reset_device(&self) -> Result<()> {
        self.forget_rings();
        Ok(())
    }

    fn get_features(&self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features.set(features);
        self.shared.target.flushes.set(features & feature::FLUSH != 0);
        if features & feature::PROTOCOL == 0 {
            // Without that feature there is no message that enables rings.
            for ring in &*self.rings.borrow() {
                ring.is_enabled.set(true);
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        *self.slots.borrow_mut() = Slots::set(regions, files);
        self.map_slots()?;
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        self.ring(index)?.size.set(size);
        Ok(())
    }

    fn set_vring_addr(
        &self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.ring(index)?.addresses.set(Some(Addresses { descriptors, available, used }));
        Ok(())
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        // The bits above are those of packed rings, which are not offered.
        self.ring(index)?.base.set(base as u16);
        Ok(())
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.ring(index)?;
        ring.stop();
        Ok(VhostUserVringState::new(index, u32::from(ring.base.get())))
    }

    fn set_vring_kick(&self, index: u8, file: Option<File>) -> Result<()> {
        let ring = self.ring(u32::from(index))?;
        // Without a descriptor the ring would have to be polled.
        let file = file.ok_or(Error::InvalidOperation("a ring without a kick"))?;
        *ring.kick.borrow_mut() = Some(Rc::new(file));
        if self.features.get() & feature::PROTOCOL == 0 {
            ring.is_enabled.set(true);
        }
        ring.is_started.set(true);
        Ok(())
    }

    fn set_vring_call(&self, index: u8, file: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?.set_call(file.map(Rc::new));
        Ok(())
    }

    fn set_vring_err(&self, index: u8, _: Option<File>) -> Result<()> {
        self.ring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        Ok(u64::from(QUEUES_MAX))
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.is_enabled.set(enable);
        Ok(())
    }

    fn get_config(&self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let (start, len) = (offset as usize, size as usize);
        let end = start.checked_add(len).ok_or(Error::InvalidParam)?;
        self.space().get(start..end).map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        if offset as usize != WRITEBACK_OFFSET || bytes.len() != 1 {
            return Err(Error::InvalidParam);
        }
        let (target, chosen) = (&self.shared.target, bytes[0] != 0);
        target.is_writeback.set(chosen);
        if let Some(inflight) = &*self.shared.inflight.borrow() {
            inflight.set_write_cache(chosen);
        }
        Ok(())
    }

    fn get_inflight_fd(&self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let shape = (asked.num_queues, asked.queue_size);
        let (file, len) = Inflight::create(shape.0, shape.1).map_err(bad)?;
        let kept = file.try_clone().map_err(bad)?;
        let inflight = Inflight::map(kept, 0, len, shape).map_err(bad)?;
        *self.shared.inflight.borrow_mut() = Some(inflight);
        let told = VhostUserInflight::new(len, 0, shape.0, shape.1);
        Ok((told, file))
    }

    fn set_inflight_fd(&self, told: &VhostUserInflight, file: File) -> Result<()> {
        let shape = (told.num_queues, told.queue_size);
        let inflight = Inflight::map(file, told.mmap_offset, told.mmap_size, shape).map_err(bad)?;
        let run = inflight.unflushed();
        if let Some(chosen) = inflight.write_cache() {
            self.shared.target.is_writeback.set(chosen);
        }
        if run != 0 && run != self.shared.run {
            self.shared.target.must_fail_flush.set(true);
            let name = self.shared.name.clone();
            self.shared.events.borrow_mut().push(Event::LostWrites { name });
        }
        *self.shared.inflight.borrow_mut() = Some(inflight);
        Ok(())
    }

    fn set_gpu_socket(&self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        Ok(MEMORY_SLOTS_MAX as u64)
    }

    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.slots.borrow_mut().add(**region, file).map_err(bad)?;
        self.map_slots()?;
        Ok(None)
    }

    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.slots.borrow_mut().remove(region).map_err(bad)?;
        self.map_slots()
    }

    fn set_device_state_fd(
        &self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

//! The client: its handle and the requests of the protocol.

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};

use super::core::{Core, Wait};
use super::error::RequestError;
use crate::message::Extent;
use crate::wire::{Request, command, command_flag};

/// Bytes of a read or write, for a server that tells no maximum.
const DEFAULT_MAX_BYTES: u32 = 32 << 20;

/// A connection to one export. Requests may come from many tasks at once; they are in flight
/// together, without an order between them. Dropping the client disconnects.
pub struct Client {
    pub(super) core: Rc<Core>,
}

impl Client {
    /// Size of the export in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core.export.size_bytes
    }

    /// [`crate::wire::transmission_flag`]s of the export.
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.core.export.flags
    }

    /// Bytes of one read or write.
    pub(crate) fn max_bytes(&self) -> u32 {
        self.core.export.sizes.map_or(DEFAULT_MAX_BYTES, |sizes| sizes.max_bytes).max(4096)
    }

    /// Whether the export has this [`crate::wire::transmission_flag`].
    pub(super) fn can(&self, flag: u16) -> bool {
        self.core.export.flags & flag != 0
    }

    /// Fills `buf` from `offset_bytes` on; at most the server's maximum block size.
    pub async fn read_once(&self, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf, RequestError> {
        self.read_flagged(offset_bytes, buf, 0).await
    }

    /// Fills `buf` as [`Client::read_once`] does, with [`command_flag`]s.
    pub async fn read_flagged(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
        flags: u16,
    ) -> Result<IoBuf, RequestError> {
        let len = buf.len() as u32;
        let wait = self.submit(command::READ, flags, offset_bytes, len, None, Some(buf));
        Ok(wait.await?.buf.expect("a read has a buffer"))
    }

    /// Writes `data`; at most the server's maximum block size.
    pub async fn write_once(
        &self,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len() as u32;
        self.submit(command::WRITE, fua_flag(fua), offset_bytes, len, Some(data), None)
            .await
            .map(|_| ())
    }

    /// Makes every completed write of the export durable.
    pub async fn flush_once(&self) -> Result<(), RequestError> {
        self.submit(command::FLUSH, 0, 0, 0, None, None).await.map(|_| ())
    }

    /// Discards the range.
    pub async fn trim(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        fua: bool,
    ) -> Result<(), RequestError> {
        self.submit(command::TRIM, fua_flag(fua), offset_bytes, len_bytes, None, None)
            .await
            .map(|_| ())
    }

    /// Zeroes the range; `flags` are [`command_flag`]s.
    pub async fn zero(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        flags: u16,
    ) -> Result<(), RequestError> {
        self.submit(command::WRITE_ZEROES, flags, offset_bytes, len_bytes, None, None)
            .await
            .map(|_| ())
    }

    /// Prefetches the range.
    pub async fn cache(&self, offset_bytes: u64, len_bytes: u32) -> Result<(), RequestError> {
        self.submit(command::CACHE, 0, offset_bytes, len_bytes, None, None).await.map(|_| ())
    }

    /// The extents of the range; needs [`Client::knows_allocation`].
    pub async fn block_status(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        flags: u16,
    ) -> Result<Vec<Extent>, RequestError> {
        let wait = self.submit(command::BLOCK_STATUS, flags, offset_bytes, len_bytes, None, None);
        Ok(wait.await?.extents)
    }

    /// Whether the server supports block status.
    #[must_use]
    pub fn knows_allocation(&self) -> bool {
        self.core.export.allocation_id.is_some()
    }

    /// Requests without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.core.pending.borrow().in_flight()
    }

    /// Sends a request, which need not be valid, and returns the wait for its reply.
    pub(crate) fn submit(
        &self,
        command: u16,
        flags: u16,
        offset_bytes: u64,
        len_bytes: u32,
        payload: Option<IoBytes>,
        buf: Option<IoBuf>,
    ) -> Wait {
        let cookie = self.core.pending.borrow_mut().begin(command, offset_bytes, buf);
        let request = Request { flags, command, cookie, offset_bytes, len_bytes };
        match payload {
            Some(payload) => self.core.outbox.push_large(&request.encode(), payload, 0),
            None => self.core.outbox.push(&request.encode(), None, 0),
        }
        Wait::new(self.core.clone(), cookie)
    }

    /// Disconnects, and waits until the disconnect was sent.
    pub async fn close(self) {
        let core = self.core.clone();
        drop(self);
        core.changed.until(|| core.sender_is_done.get()).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let disconnect =
            Request { flags: 0, command: command::DISC, cookie: 0, offset_bytes: 0, len_bytes: 0 };
        self.core.outbox.push(&disconnect.encode(), None, 0);
        self.core.outbox.close();
    }
}

pub(super) fn fua_flag(fua: bool) -> u16 {
    if fua { command_flag::FUA } else { 0 }
}

//! The client as a block device.

use forebay_device::{
    Allocation, BlockDevice, Cause, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes,
    Operation, ZeroOptions, check_range,
};

use super::error::{ConnectionLoss, RequestError};
use super::requests::{Client, fua_flag};
use crate::wire::{command_flag, errno, status_flag, transmission_flag};

/// Bytes of one request without data; its length field has 32 bits.
const MAX_DATALESS_BYTES: u64 = 1 << 30;

/// Bytes of zeros in one write, for a server without `WRITE_ZEROES`.
const ZERO_WRITE_BYTES: usize = 1 << 20;

impl Client {
    fn error(&self, op: Operation, offset: u64, len: u64, e: RequestError) -> DeviceError {
        let kind = match e {
            RequestError::Server { error: errno::ENOSPC, .. } => ErrorKind::NoSpace,
            RequestError::Server { error: errno::EPERM, .. } => ErrorKind::ReadOnly,
            RequestError::Server { error: errno::ENOTSUP, .. } => ErrorKind::Unsupported,
            RequestError::Server { error: errno::ESHUTDOWN, .. } => ErrorKind::Gone,
            RequestError::Server { error, text } if text.is_empty() => {
                ErrorKind::Os { errno: i32::try_from(error).unwrap_or(i32::MAX) }
            }
            RequestError::Server { error, text } => ErrorKind::Server { errno: error, text },
            RequestError::WrongLength(e) => ErrorKind::Layer(Cause::new(e)),
            RequestError::Lost(_) => ErrorKind::Gone,
        };
        DeviceError::new(&self.core.name, op, offset, len, kind)
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.core.name, &self.geometry(), op, offset, len)
    }

    async fn flush_if(&self, wanted: bool) -> Result<(), DeviceError> {
        if wanted { self.flush().await } else { Ok(()) }
    }
}

impl BlockDevice for Client {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.core.export.size_bytes,
            block_bytes: self.core.export.sizes.map_or(512, |sizes| sizes.min_bytes.max(512)),
            volatile_cache: self.can(transmission_flag::SEND_FLUSH),
            discard_bytes: if self.can(transmission_flag::SEND_TRIM) { 4096 } else { 0 },
            read_only: self.can(transmission_flag::READ_ONLY),
        }
    }

    /// Closes the connection.
    fn abandon(&self) {
        self.core.lose(ConnectionLoss::Abandoned);
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let op = Operation::Read;
            let total = buf.len();
            self.check(op, offset_bytes, total as u64)?;
            let max = self.max_bytes() as usize;
            if total <= max {
                let outcome = self.read_once(offset_bytes, buf).await;
                return outcome.map_err(|e| self.error(op, offset_bytes, total as u64, e));
            }
            let mut done = 0;
            while done < total {
                let step = (total - done).min(max);
                let at = offset_bytes + done as u64;
                let part = self.read_once(at, IoBuf::recycled(step)).await;
                let part = part.map_err(|e| self.error(op, at, step as u64, e))?;
                buf[done..done + step].copy_from_slice(&part);
                done += step;
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let op = Operation::Write;
            let total = data.len();
            self.check(op, offset_bytes, total as u64)?;
            let by_flag = fua && self.can(transmission_flag::SEND_FUA);
            let max = self.max_bytes() as usize;
            let mut done = 0;
            while done < total {
                let step = (total - done).min(max);
                let at = offset_bytes + done as u64;
                self.write_once(at, data.slice(done, step), by_flag)
                    .await
                    .map_err(|e| self.error(op, at, step as u64, e))?;
                done += step;
            }
            self.flush_if(fua && !by_flag).await
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if !self.can(transmission_flag::SEND_FLUSH) {
                let kind = ErrorKind::Unsupported;
                return Err(DeviceError::new(&self.core.name, Operation::Flush, 0, 0, kind));
            }
            self.flush_once().await.map_err(|e| self.error(Operation::Flush, 0, 0, e))
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let op = Operation::Discard;
            self.check(op, offset_bytes, len_bytes)?;
            if !self.can(transmission_flag::SEND_TRIM) {
                return Ok(());
            }
            let by_flag = fua && self.can(transmission_flag::SEND_FUA);
            let mut done = 0;
            while done < len_bytes {
                let step = (len_bytes - done).min(MAX_DATALESS_BYTES);
                let at = offset_bytes + done;
                self.trim(at, step as u32, by_flag)
                    .await
                    .map_err(|e| self.error(op, at, step, e))?;
                done += step;
            }
            self.flush_if(fua && !by_flag).await
        })
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let op = Operation::WriteZeroes;
            self.check(op, offset_bytes, len_bytes)?;
            let can = self.can(transmission_flag::SEND_WRITE_ZEROES);
            if options.fast && !(can && self.can(transmission_flag::SEND_FAST_ZERO)) {
                let kind = ErrorKind::Unsupported;
                return Err(DeviceError::new(&self.core.name, op, offset_bytes, len_bytes, kind));
            }
            let by_flag = options.fua && self.can(transmission_flag::SEND_FUA);
            let mut flags = fua_flag(by_flag);
            if options.no_hole {
                flags |= command_flag::NO_HOLE;
            }
            if options.fast {
                flags |= command_flag::FAST_ZERO;
            }
            let zeros = (!can).then(|| IoBuf::zeroed(ZERO_WRITE_BYTES).freeze());
            let max = if can { MAX_DATALESS_BYTES } else { ZERO_WRITE_BYTES as u64 };
            let mut done = 0;
            while done < len_bytes {
                let step = (len_bytes - done).min(max);
                let at = offset_bytes + done;
                match &zeros {
                    None => self
                        .zero(at, step as u32, flags)
                        .await
                        .map_err(|e| self.error(op, at, step, e))?,
                    Some(zeros) => self.write(at, zeros.slice(0, step as usize), by_flag).await?,
                }
                done += step;
            }
            self.flush_if(options.fua && !by_flag).await
        })
    }

    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Box::pin(async move {
            let op = Operation::Allocation;
            self.check(op, offset_bytes, len_bytes)?;
            if !self.knows_allocation() {
                return Ok(vec![Allocation { len_bytes, hole: false }]);
            }
            let asked = len_bytes.min(MAX_DATALESS_BYTES);
            let extents = self
                .block_status(offset_bytes, asked as u32, 0)
                .await
                .map_err(|e| self.error(op, offset_bytes, asked, e))?;
            let hole = status_flag::HOLE | status_flag::ZERO;
            let run = |extent: &crate::message::Extent| Allocation {
                len_bytes: u64::from(extent.len_bytes),
                hole: extent.flags & hole == hole,
            };
            Ok(extents.iter().map(run).collect())
        })
    }
}

//! Devices over a device: a layer writes only the methods that it changes.

mod counted;
mod recorded;
mod single_writer;

pub use counted::{Counted, Counts};
pub use recorded::{CommandRecord, Recorded};
pub use single_writer::{SingleWriter, WriterOpening};

use crate::{
    Allocation, BlockDevice, DeviceFuture, DramChange, DramStatus, Geometry, IoBuf, IoBytes,
    ObjectStats, ReservationChange, Reservations, ZeroOptions,
};

/// A device that stands over another one. Every method passes the call on unchanged until a
/// layer overrides it; every `Layer` is a [`BlockDevice`].
///
/// `write_zeroes` goes to [`Layer::inner`] as `write_zeroes`, never through [`Layer::write`]: a
/// layer that changes writes overrides both. `write_vectored` goes through [`Layer::write`], with
/// its parts joined: a layer that copies nothing overrides it.
///
/// A module that implements `Layer` and also calls the methods of its layers imports only one of
/// the two traits: their methods have the same names.
pub trait Layer {
    /// The device underneath.
    fn inner(&self) -> &dyn BlockDevice;

    /// As [`BlockDevice::name`].
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// As [`BlockDevice::geometry`].
    fn geometry(&self) -> Geometry {
        self.inner().geometry()
    }

    /// As [`BlockDevice::allocates_on_write`].
    fn allocates_on_write(&self) -> bool {
        self.inner().allocates_on_write()
    }

    /// As [`BlockDevice::check_presence`].
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        self.inner().check_presence()
    }

    /// As [`BlockDevice::read`].
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.inner().read(offset_bytes, buf)
    }

    /// As [`BlockDevice::write`].
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner().write(offset_bytes, data, fua)
    }

    /// As [`BlockDevice::write_vectored`].
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        self.write(offset, IoBytes::joined(parts), fua)
    }

    /// As [`BlockDevice::flush`].
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.inner().flush()
    }

    /// As [`BlockDevice::discard`].
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner().discard(offset_bytes, len_bytes, fua)
    }

    /// As [`BlockDevice::write_zeroes`].
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        self.inner().write_zeroes(offset_bytes, len_bytes, options)
    }

    /// As [`BlockDevice::allocation`].
    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        self.inner().allocation(offset_bytes, len_bytes)
    }

    /// As [`BlockDevice::reservations`].
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        self.inner().reservations()
    }

    /// As [`BlockDevice::change_reservations`].
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        self.inner().change_reservations(change)
    }

    /// As [`BlockDevice::save`].
    fn save(&self) -> DeviceFuture<'_, ()> {
        self.inner().save()
    }

    /// As [`BlockDevice::abandon`].
    fn abandon(&self) {
        self.inner().abandon();
    }

    /// As [`BlockDevice::dram`].
    fn dram(&self) -> Option<DramStatus> {
        self.inner().dram()
    }

    /// As [`BlockDevice::objects`].
    fn objects(&self) -> Option<ObjectStats> {
        self.inner().objects()
    }

    /// As [`BlockDevice::take_dram_changes`].
    fn take_dram_changes(&self) -> Vec<DramChange> {
        self.inner().take_dram_changes()
    }
}

impl<L: Layer> BlockDevice for L {
    fn name(&self) -> &str {
        Layer::name(self)
    }
    fn geometry(&self) -> Geometry {
        Layer::geometry(self)
    }
    fn allocates_on_write(&self) -> bool {
        Layer::allocates_on_write(self)
    }
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        Layer::check_presence(self)
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Layer::read(self, offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write(self, offset_bytes, data, fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write_vectored(self, offset, parts, fua)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Layer::flush(self)
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::discard(self, offset_bytes, len_bytes, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Layer::write_zeroes(self, offset, len, options)
    }
    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Layer::allocation(self, offset_bytes, len_bytes)
    }
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        Layer::reservations(self)
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Layer::change_reservations(self, change)
    }
    fn save(&self) -> DeviceFuture<'_, ()> {
        Layer::save(self)
    }
    fn abandon(&self) {
        Layer::abandon(self);
    }
    fn dram(&self) -> Option<DramStatus> {
        Layer::dram(self)
    }
    fn objects(&self) -> Option<ObjectStats> {
        Layer::objects(self)
    }
    fn take_dram_changes(&self) -> Vec<DramChange> {
        Layer::take_dram_changes(self)
    }
}

//! A guest's memory, as its front end shares it.

use std::fs::File;
use std::io;

use forebay_rt::MappingGuard;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion,
};

use crate::limits::{GUEST_MAX_BYTES, MEMORY_SLOTS_MAX};

/// A part of a guest's memory: address and length.
pub(crate) type Piece = (GuestAddress, u32);

/// A page that this process alone has, at an address where no guest has memory.
const SCRATCH: GuestAddress = GuestAddress(1 << 62);
const SCRATCH_BYTES: usize = 4096;

/// A guest's memory. An access to what is not there is an error, whatever the guest does.
pub(crate) struct Memory {
    // The guards end before the mappings do.
    regions: Vec<Region>,
    mapped: GuestMemoryMmap,
}

struct Region {
    guest: u64,
    /// The address in the front end's process.
    front: u64,
    len_bytes: u64,
    guard: MappingGuard,
}

impl Memory {
    /// Maps what a front end shares.
    pub(crate) fn map(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> io::Result<Self> {
        let mut sorted: Vec<_> = regions.iter().copied().zip(files).collect();
        sorted.sort_by_key(|(region, _)| region.guest_phys_addr);
        let total =
            regions.iter().try_fold(0u64, |sum, region| sum.checked_add(region.memory_size));
        if total.is_none_or(|bytes| bytes > GUEST_MAX_BYTES) {
            return Err(invalid("it is larger than 16 TiB"));
        }
        let (mut known, mut mapped) = (Vec::new(), Vec::new());
        for (region, file) in sorted {
            let len = usize::try_from(region.memory_size).map_err(io::Error::other)?;
            let place = FileOffset::new(file, region.mmap_offset);
            let mapping: MmapRegion<()> =
                MmapRegion::from_file(place, len).map_err(io::Error::other)?;
            // SAFETY: the mapping is new, and `Memory` drops its guards before its mappings.
            let guard = unsafe { MappingGuard::new(mapping.as_ptr(), len) }?;
            let mapping = GuestRegionMmap::new(mapping, GuestAddress(region.guest_phys_addr));
            mapped.push(mapping.ok_or_else(|| invalid("a region ends past all addresses"))?);
            if region.user_addr.checked_add(region.memory_size).is_none() {
                return Err(invalid("a region ends past all addresses"));
            }
            known.push(Region {
                guest: region.guest_phys_addr,
                front: region.user_addr,
                len_bytes: region.memory_size,
                guard,
            });
        }
        let page = MmapRegion::new(SCRATCH_BYTES).map_err(io::Error::other)?;
        mapped.extend(GuestRegionMmap::new(page, SCRATCH));
        let mapped = GuestMemoryMmap::from_regions(mapped).map_err(io::Error::other)?;
        Ok(Self { regions: known, mapped })
    }

    /// What a queue works on.
    pub(crate) fn mapped(&self) -> &GuestMemoryMmap {
        &self.mapped
    }

    /// An available ring that offers `head` and nothing else.
    pub(crate) fn ring_of_one(&self, head: u16) -> io::Result<GuestAddress> {
        let mut ring = [0; 6];
        ring[2..4].copy_from_slice(&1u16.to_le_bytes());
        ring[4..6].copy_from_slice(&head.to_le_bytes());
        self.mapped.write_slice(&ring, SCRATCH).map_err(io::Error::other)?;
        Ok(SCRATCH)
    }

    /// The guest's address of an address in the front end's process.
    pub(crate) fn guest_address(&self, front: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = front.checked_sub(region.front).filter(|at| *at < region.len_bytes)?;
            Some(GuestAddress(region.guest + offset))
        })
    }

    /// Whether the front end has taken memory away that it had shared.
    pub(crate) fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.guard.is_lost())
    }

    /// Whether all of `pieces` is there.
    pub(crate) fn has(&self, pieces: &[Piece]) -> bool {
        pieces.iter().all(|(at, len)| self.mapped.check_range(*at, *len as usize))
    }

    /// Copies `pieces`, one after the other, into `bytes`, which they fill.
    pub(crate) fn gather(&self, pieces: &[Piece], bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, len) in pieces {
            let (here, after) = rest.split_at_mut(*len as usize);
            self.mapped.read_slice(here, *at).map_err(io::Error::other)?;
            rest = after;
        }
        Ok(())
    }

    /// Copies `bytes` to `pieces`, one after the other, as far as the bytes go.
    pub(crate) fn scatter(&self, bytes: &[u8], pieces: &[Piece]) -> io::Result<()> {
        let mut rest = bytes;
        for (at, len) in pieces {
            let (here, after) = rest.split_at(rest.len().min(*len as usize));
            self.mapped.write_slice(here, *at).map_err(io::Error::other)?;
            rest = after;
        }
        Ok(())
    }
}

/// The pieces of memory that a front end shares at this moment.
#[derive(Default)]
pub(crate) struct Slots(Vec<(VhostUserMemoryRegion, File)>);

impl Slots {
    pub(crate) fn set(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Self {
        Self(regions.iter().copied().zip(files).collect())
    }

    pub(crate) fn add(&mut self, region: VhostUserMemoryRegion, file: File) -> io::Result<()> {
        if self.0.len() >= MEMORY_SLOTS_MAX {
            return Err(invalid("it has more pieces than it may"));
        }
        self.0.push((region, file));
        Ok(())
    }

    /// Forgets a piece, which must be there.
    pub(crate) fn remove(&mut self, region: &VhostUserMemoryRegion) -> io::Result<()> {
        let place = |region: &VhostUserMemoryRegion| {
            (region.guest_phys_addr, region.user_addr, region.memory_size)
        };
        let found = self.0.iter().position(|(known, _)| place(known) == place(region));
        self.0.remove(found.ok_or_else(|| invalid("a piece that is not there"))?);
        Ok(())
    }

    /// Maps all of them.
    pub(crate) fn map(&self) -> io::Result<Memory> {
        let regions: Vec<VhostUserMemoryRegion> =
            self.0.iter().map(|(region, _)| *region).collect();
        let files: io::Result<Vec<File>> =
            self.0.iter().map(|(_, file)| file.try_clone()).collect();
        Memory::map(&regions, files?)
    }
}

pub(crate) fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

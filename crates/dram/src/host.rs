//! What a log device in memory needs of its machine: memory that outlives the process, and the
//! power supply.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::Mapping;
use forebay_rt as rt;

use crate::nut::{NutSource, UpsName};
use crate::power::PowerSource;

/// Memory that outlives the process. Ranges are inside; a caller that errs is stopped.
pub trait Memory {
    /// Bytes of it.
    fn len_bytes(&self) -> u64;

    /// Whether it outlives a loss of power too.
    fn is_persistent(&self) -> bool;

    /// Whether another process would still find it at its path.
    fn is_linked(&self) -> bool;

    /// Fills `out` from `offset_bytes` on.
    fn read(&self, offset_bytes: u64, out: &mut [u8]);

    /// Copies `bytes` to `offset_bytes`.
    fn write(&self, offset_bytes: u64, bytes: &[u8]);
}

/// What [`Host::open_memory`] and [`Host::create_memory`] return while they run.
pub type OpeningMemory<'a> = Pin<Box<dyn Future<Output = io::Result<Rc<dyn Memory>>> + 'a>>;

/// What [`Host::remove_memory`] returns while it runs.
pub type RemovingMemory<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A machine.
pub trait Host {
    /// Opens a memory for this process alone. Fails with `WouldBlock` if another one has it.
    fn open_memory<'a>(&'a self, path: &'a str) -> OpeningMemory<'a>;

    /// Makes a memory of zeros, instead of one that is there.
    fn create_memory<'a>(&'a self, path: &'a str, len_bytes: u64) -> OpeningMemory<'a>;

    /// Gives a memory back, if it is there.
    fn remove_memory<'a>(&'a self, path: &'a str) -> RemovingMemory<'a>;

    /// The power supply of this name; `None` if no supply has such a name.
    fn power(self: Rc<Self>, ups: &str) -> Option<Rc<dyn PowerSource>>;
}

/// The machine that this process runs on.
pub struct ThisMachine;

impl Memory for Mapping {
    fn len_bytes(&self) -> u64 {
        Mapping::len_bytes(self)
    }
    fn is_persistent(&self) -> bool {
        Mapping::is_persistent(self)
    }
    fn is_linked(&self) -> bool {
        Mapping::is_linked(self)
    }
    fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        Mapping::read(self, offset_bytes, out);
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        Mapping::write(self, offset_bytes, bytes);
    }
}

impl Host for ThisMachine {
    fn open_memory<'a>(&'a self, path: &'a str) -> OpeningMemory<'a> {
        let path = path.to_owned();
        Box::pin(async move {
            let mapping = rt::aside(move || Mapping::open(Path::new(&path))).await?;
            let memory: Rc<dyn Memory> = Rc::new(mapping);
            Ok(memory)
        })
    }

    fn create_memory<'a>(&'a self, path: &'a str, len_bytes: u64) -> OpeningMemory<'a> {
        let path = path.to_owned();
        Box::pin(async move {
            let make = move || Mapping::create(Path::new(&path), len_bytes);
            let memory: Rc<dyn Memory> = Rc::new(rt::aside(make).await?);
            Ok(memory)
        })
    }

    fn remove_memory<'a>(&'a self, path: &'a str) -> RemovingMemory<'a> {
        let path = path.to_owned();
        // Nothing depends on it: the next use makes the memory anew.
        Box::pin(async move { drop(rt::aside(move || std::fs::remove_file(path)).await) })
    }

    fn power(self: Rc<Self>, ups: &str) -> Option<Rc<dyn PowerSource>> {
        let source: Rc<dyn PowerSource> = NutSource::new(UpsName::parse(ups)?);
        Some(source)
    }
}

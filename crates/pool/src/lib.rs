//! SKELETON for the command line's author: the real crate replaces it with these signatures.
pub mod spec;
pub mod status;
use std::rc::Rc;
use forebay_device::{Device, DeviceError};
use spec::*;
use status::*;

/// Opens devices by name: files and disks in production, simulated ones in simulation.
pub trait Opener {
    /// Opens `path` exclusively. 
    fn open(&self, path: &str) -> Result<Device, DeviceError>;
}

/// Something that could not be done: one line for the operator that says what to do.
#[derive(Debug)]
pub struct PoolError { pub message: String }

pub struct Pool;
impl Pool {
    pub async fn create(_opener: Rc<dyn Opener>, _name: &str, _spec: &PoolSpec) -> Result<Rc<Pool>, PoolError> { unimplemented!() }
    /// Looks for pools on `paths`.
    pub async fn discover(_opener: Rc<dyn Opener>, _paths: &[String]) -> Vec<FoundPool> { unimplemented!() }
    /// Imports the pool `name_or_guid` found on `paths`.
    pub async fn import(_opener: Rc<dyn Opener>, _paths: &[String], _name_or_guid: &str, _options: &ImportOptions) -> Result<Rc<Pool>, PoolError> { unimplemented!() }
    pub async fn export(&self) -> Result<(), PoolError> { unimplemented!() }
    pub async fn destroy(&self) -> Result<(), PoolError> { unimplemented!() }
    pub fn name(&self) -> String { unimplemented!() }
    pub fn status(&self) -> PoolStatus { unimplemented!() }
    pub fn summary(&self) -> PoolSummary { unimplemented!() }
    pub fn stats(&self) -> PoolStats { unimplemented!() }
    pub fn history(&self) -> Vec<String> { unimplemented!() }
    /// Appends a line to the history (the command as typed).
    pub async fn log_history(&self, _line: &str) -> Result<(), PoolError> { unimplemented!() }
    pub fn get(&self) -> std::collections::BTreeMap<String, String> { unimplemented!() }
    pub async fn set(&self, _property: &str, _value: &str) -> Result<(), PoolError> { unimplemented!() }
    pub async fn add(&self, _spec: &PoolSpec) -> Result<(), PoolError> { unimplemented!() }
    pub async fn remove(&self, _device: &str) -> Result<(), PoolError> { unimplemented!() }
    pub async fn attach(&self, _device: &str, _new: &str, _force: bool) -> Result<(), PoolError> { unimplemented!() }
    pub async fn detach(&self, _device: &str) -> Result<(), PoolError> { unimplemented!() }
    pub async fn replace(&self, _device: &str, _new: Option<&str>, _force: bool) -> Result<(), PoolError> { unimplemented!() }
    pub async fn offline(&self, _device: &str) -> Result<(), PoolError> { unimplemented!() }
    pub async fn online(&self, _device: &str) -> Result<(), PoolError> { unimplemented!() }
    /// Starts or resumes a scrub; `pool.status().scan` tells how it goes.
    pub async fn scrub(&self) -> Result<(), PoolError> { unimplemented!() }
    pub async fn scrub_pause(&self) -> Result<(), PoolError> { unimplemented!() }
    pub async fn scrub_stop(&self) -> Result<(), PoolError> { unimplemented!() }
    pub async fn resilver(&self) -> Result<(), PoolError> { unimplemented!() }
    pub fn volumes(&self) -> Vec<VolumeStatus> { unimplemented!() }
    /// The block device of a volume, for NBD.
    pub fn open_volume(&self, _name: &str) -> Option<Device> { unimplemented!() }
    pub async fn create_volume(&self, _spec: &VolumeSpec) -> Result<(), PoolError> { unimplemented!() }
    pub async fn destroy_volume(&self, _name: &str) -> Result<(), PoolError> { unimplemented!() }
    pub async fn resize_volume(&self, _name: &str, _size_bytes: u64, _force: bool) -> Result<(), PoolError> { unimplemented!() }
    pub fn get_volume(&self, _name: &str) -> Option<VolumeStatus> { unimplemented!() }
    pub async fn set_volume(&self, _name: &str, _property: &str, _value: &str) -> Result<(), PoolError> { unimplemented!() }
}

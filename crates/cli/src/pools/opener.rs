//! The opener of devices that the pools of a set have.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_pool::spec::Told;
use forebay_pool::{Answering, Counting, Opener, Opening};

use crate::signals::Stop;
use crate::state_writer::StateWriter;
use crate::taps::Taps;

/// The pools' opener of devices. It also reports their configurations to the state folder, and
/// tells them when the operator wants the end.
pub(super) struct ReportingOpener {
    pub opener: Rc<dyn Opener>,
    pub writer: Rc<StateWriter>,
    pub stop: Option<Rc<Stop>>,
    pub taps: Rc<Taps>,
}

impl Opener for ReportingOpener {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move { Ok(self.taps.tap(path, self.opener.open(path).await?)) })
    }

    fn open_to_look<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.opener.open_to_look(path)
    }

    fn host(&self) -> u64 {
        self.opener.host()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        self.opener.free_memory_bytes()
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.opener.memory_bytes()
    }

    fn count_memory(&self) -> Counting<'_> {
        self.opener.count_memory()
    }

    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        self.opener.answers(path)
    }

    fn witness(
        &self,
        pool: u64,
        told: Told,
        devices: Vec<String>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.writer.report(pool, told, devices))
    }

    fn is_unwanted(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_asked())
    }
}

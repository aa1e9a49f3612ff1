//! The load: writers that write records, make them durable, and report that to the witness.
//!
//! What enters: a device, a plan, a witness. What leaves: how the load ended. What always holds: a
//! record is reported only after the device has said that it is durable, and a writer begins its
//! next record only then. Who calls: `forebay qualify power-cut`, and tests.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::Nanos;

use super::sector::fill_record;
use crate::power_cut::CutPlan;
use crate::{Observer, Progress, Sync};

/// The witness is lost: what is written from now on proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessLost;

/// What a witness does with a report.
pub type WitnessFuture<'a> = Pin<Box<dyn Future<Output = Result<(), WitnessLost>> + 'a>>;

/// The one who keeps acknowledgements where the power cut does not reach.
pub trait Witness {
    /// A writer's records up to this one are durable, as the device says.
    fn durable(&self, writer: u16, sequence: u64) -> WitnessFuture<'_>;

    /// Each place has a durable record now.
    fn filled(&self) -> WitnessFuture<'_>;
}

/// Why the load ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadEnd {
    /// The operator stopped it.
    Stopped,
    /// The device failed a request.
    DeviceFailed(DeviceError),
    /// The witness is lost.
    WitnessLost,
}

/// What the load did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutLoad {
    /// Records that the witness was told of.
    pub records: u64,
    /// Why it ended.
    pub ended: LoadEnd,
}

struct Shared {
    device: Device,
    plan: CutPlan,
    witness: Rc<dyn Witness>,
    records: Cell<u64>,
    writers_filled: Cell<u16>,
    ended: RefCell<Option<LoadEnd>>,
}

impl Shared {
    fn end(&self, why: LoadEnd) {
        self.ended.borrow_mut().get_or_insert(why);
    }

    async fn write(&self, writer: u16) {
        let (sync, mut durable) = (self.plan.sync_of(writer), 0);
        while self.ended.borrow().is_none() {
            let batch = if sync == Sync::Fua { 1 } else { u64::from(self.plan.batch) };
            if let Err(error) = self.write_batch(writer, durable, batch, sync).await {
                return self.end(LoadEnd::DeviceFailed(error));
            }
            let before = durable;
            durable += batch;
            if let Err(WitnessLost) = self.report(writer, before, durable).await {
                return self.end(LoadEnd::WitnessLost);
            }
            self.records.set(self.records.get() + batch);
        }
    }

    /// Writes the next `batch` records behind the durable ones, and makes them durable.
    async fn write_batch(
        &self,
        writer: u16,
        durable: u64,
        batch: u64,
        sync: Sync,
    ) -> Result<(), DeviceError> {
        for sequence in durable + 1..=durable + batch {
            let mut record = IoBuf::recycled(self.plan.record_bytes as usize);
            fill_record(&self.plan, writer, sequence, durable, &mut record);
            let place = self.plan.offset_bytes(self.plan.slot(writer, sequence));
            self.device.write(place, record.freeze(), sync == Sync::Fua).await?;
        }
        match sync {
            Sync::Fua => Ok(()),
            _ => self.device.flush().await,
        }
    }

    async fn report(&self, writer: u16, before: u64, durable: u64) -> Result<(), WitnessLost> {
        self.witness.durable(writer, durable).await?;
        let own = self.plan.slots_of_writer();
        if before < own && durable >= own {
            self.writers_filled.set(self.writers_filled.get() + 1);
            if self.writers_filled.get() == self.plan.writers {
                self.witness.filled().await?;
            }
        }
        Ok(())
    }
}

/// Writes records until the operator, the device or the witness ends it.
pub async fn write_records(
    device: &Device,
    plan: &CutPlan,
    witness: Rc<dyn Witness>,
    observer: &dyn Observer,
) -> CutLoad {
    const LOOK: Nanos = Nanos::from_millis(250);
    let shared = Rc::new(Shared {
        device: device.clone(),
        plan: plan.clone(),
        witness,
        records: Cell::new(0),
        writers_filled: Cell::new(0),
        ended: RefCell::new(None),
    });
    let writer = |writer| {
        let shared = shared.clone();
        rt::spawn(async move { shared.write(writer).await })
    };
    let writers: Vec<_> = (0..plan.writers).map(writer).collect();
    let writers = async {
        for writer in writers {
            writer.await;
        }
    };
    let begun = rt::now();
    let watching = async {
        let mut before = 0;
        loop {
            rt::sleep(LOOK).await;
            let count = shared.records.get();
            let iops = (count - before) as f64 / LOOK.as_secs_f64();
            before = count;
            let elapsed = rt::now().since(begun);
            if !observer.goes_on(Progress { elapsed, iops, ..Progress::default() }) {
                shared.end(LoadEnd::Stopped);
            }
        }
    };
    let (writers, watching) = (std::pin::pin!(writers), std::pin::pin!(watching));
    let never: Option<std::convert::Infallible> = match rt::select(writers, watching).await {
        rt::Either::Left(((), _)) => None,
        rt::Either::Right((never, _)) => Some(never),
    };
    debug_assert!(never.is_none());
    let ended = shared.ended.borrow_mut().take().unwrap_or(LoadEnd::Stopped);
    CutLoad { records: shared.records.get(), ended }
}

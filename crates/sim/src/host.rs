//! A simulated machine: memory that outlives processes and not the power, and a power supply.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Cause, DeviceError, ErrorKind, Operation};
use forebay_dram::{
    Host, Memory, OpeningMemory, PowerReading, PowerSource, Reading, RemovingMemory,
};
use forebay_rt as rt;
use forebay_units::Nanos;

/// How long the supply takes to answer.
const ANSWER_LATENCY: Nanos = Nanos::from_millis(3);

/// What the power supply does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// It is on line, and its battery would hold for so many seconds.
    OnLine {
        /// Seconds.
        runtime_secs: u64,
    },
    /// It is on battery, until this time.
    OnBattery {
        /// When the power is gone.
        until: Nanos,
    },
    /// It cannot be asked.
    Silent,
}

/// A machine whose memory and power supply outlive runtimes.
pub struct SimHost {
    memories: RefCell<BTreeMap<String, Rc<RefCell<Sparse>>>>,
    supply: Cell<Supply>,
}

struct SimMemory {
    bytes: Rc<RefCell<Sparse>>,
}

/// Memory of which only what is not zero takes room: a log device is mostly empty, and each boot
/// makes it anew.
struct Sparse {
    len_bytes: u64,
    pages: Vec<Option<Box<[u8]>>>,
}

/// Bytes of a part of memory that takes room or not.
const PAGE_BYTES: usize = 16 << 10;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

impl Sparse {
    fn new(len_bytes: u64) -> Self {
        let mut pages = Vec::new();
        pages.resize_with((len_bytes as usize).div_ceil(PAGE_BYTES), || None);
        Self { len_bytes, pages }
    }

    /// The parts of a range, each within a page: the page, where in it, and where in the range.
    fn parts(
        &self,
        offset_bytes: u64,
        len: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> + use<> {
        let offset = offset_bytes as usize;
        assert!(offset + len <= self.len_bytes as usize, "outside of the memory");
        (offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES)).map(move |page| {
            let start = (page * PAGE_BYTES).max(offset);
            let end = ((page + 1) * PAGE_BYTES).min(offset + len);
            let at = page * PAGE_BYTES;
            (page, start - at..end - at, start - offset..end - offset)
        })
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        for (page, inside, part) in self.parts(offset_bytes, out.len()) {
            match &self.pages[page] {
                Some(bytes) => out[part].copy_from_slice(&bytes[inside]),
                None => out[part].fill(0),
            }
        }
    }

    fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for (page, inside, part) in self.parts(offset_bytes, bytes.len()) {
            let page = &mut self.pages[page];
            let bytes = &bytes[part];
            if page.is_some() || bytes != &ZEROS[..bytes.len()] {
                let page = page.get_or_insert_with(|| vec![0; PAGE_BYTES].into());
                page[inside].copy_from_slice(bytes);
            }
        }
    }
}

impl SimHost {
    /// A machine that is on line.
    #[must_use]
    pub fn new(runtime_secs: u64) -> Rc<Self> {
        let supply = Cell::new(Supply::OnLine { runtime_secs });
        Rc::new(Self { memories: RefCell::default(), supply })
    }

    /// Changes what the power supply does.
    pub fn set_supply(&self, supply: Supply) {
        self.supply.set(supply);
    }

    /// What the power supply does.
    #[must_use]
    pub fn supply(&self) -> Supply {
        self.supply.get()
    }

    /// The power is gone, and with it all memory.
    pub fn lose_memory(&self) {
        self.memories.borrow_mut().clear();
    }

    /// Bytes of all memories.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memories.borrow().values().map(|bytes| bytes.borrow().len_bytes).sum()
    }
}

impl Memory for SimMemory {
    fn len_bytes(&self) -> u64 {
        self.bytes.borrow().len_bytes
    }
    fn is_persistent(&self) -> bool {
        false
    }
    fn is_linked(&self) -> bool {
        // The machine has it under its path.
        Rc::strong_count(&self.bytes) > 1
    }
    fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        self.bytes.borrow().read(offset_bytes, out);
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        self.bytes.borrow_mut().write(offset_bytes, bytes);
    }
}

fn opened(bytes: &Rc<RefCell<Sparse>>) -> Rc<dyn Memory> {
    Rc::new(SimMemory { bytes: bytes.clone() })
}

impl Host for SimHost {
    fn open_memory<'a>(&'a self, path: &'a str) -> OpeningMemory<'a> {
        Box::pin(async move {
            let memories = self.memories.borrow();
            memories.get(path).map(opened).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn create_memory<'a>(&'a self, path: &'a str, len_bytes: u64) -> OpeningMemory<'a> {
        Box::pin(async move {
            let bytes = Rc::new(RefCell::new(Sparse::new(len_bytes)));
            let memory = opened(&bytes);
            self.memories.borrow_mut().insert(path.to_owned(), bytes);
            Ok(memory)
        })
    }

    fn remove_memory<'a>(&'a self, path: &'a str) -> RemovingMemory<'a> {
        Box::pin(async move { drop(self.memories.borrow_mut().remove(path)) })
    }

    fn power(self: Rc<Self>, _ups: &str) -> Option<Rc<dyn PowerSource>> {
        let source: Rc<dyn PowerSource> = Rc::new(SimSupply(self));
        Some(source)
    }
}

struct SimSupply(Rc<SimHost>);

impl PowerSource for SimSupply {
    fn read(&self) -> Reading<'_> {
        Box::pin(async move {
            // The answer is as old as the question: the worst that a caller may expect.
            let (supply, asked_at) = (self.0.supply(), rt::now());
            rt::sleep(ANSWER_LATENCY).await;
            let answer = |status: &str, runtime_secs| {
                Ok(PowerReading { status: status.to_owned(), runtime_secs: Some(runtime_secs) })
            };
            match supply {
                Supply::OnLine { runtime_secs } => answer("OL CHRG", runtime_secs),
                Supply::OnBattery { until } => {
                    answer("OB DISCHRG", until.since(asked_at).0 / 1_000_000_000)
                }
                Supply::Silent => {
                    let kind = ErrorKind::Gone;
                    Err(Cause::new(DeviceError::new("supply", Operation::Check, 0, 0, kind)))
                }
            }
        })
    }
}

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{BlockDevice, DeviceFuture, IoBytes, Layer, MemoryDevice};
use forebay_format::label::LABEL_BYTES;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::tests::rack::Rack;
use crate::tests::spec;
use crate::{Opener, Opening, Pool};

const SIZE: u64 = MIN_DEVICE_BYTES;

/// A file that takes space when it is written, or a disk.
struct Region {
    inner: MemoryDevice,
    is_file: bool,
    written: RefCell<Vec<(u64, u64)>>,
    /// Offsets of what was to be durable at once.
    durable: RefCell<Vec<u64>>,
    flushes: Cell<u64>,
    discarded: RefCell<Vec<(u64, u64)>>,
}

impl Region {
    fn new(is_file: bool) -> Rc<Self> {
        Rc::new(Self {
            inner: MemoryDevice::new("l", SIZE),
            is_file,
            written: RefCell::default(),
            durable: RefCell::default(),
            flushes: Cell::new(0),
            discarded: RefCell::default(),
        })
    }
}

impl Layer for Region {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }
    fn allocates_on_write(&self) -> bool {
        self.is_file
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.written.borrow_mut().push((offset_bytes, data.len() as u64));
        self.durable.borrow_mut().extend(fua.then_some(offset_bytes));
        self.inner.write(offset_bytes, data, fua)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.flushes.set(self.flushes.get() + 1);
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.discarded.borrow_mut().push((offset_bytes, len_bytes));
        self.inner.discard(offset_bytes, len_bytes, fua)
    }
}

/// Answers `turns` times that the command is wanted, and then that it is canceled.
struct Canceled {
    turns: Cell<u64>,
}

impl Opener for Canceled {
    fn open<'a>(&'a self, _path: &'a str) -> Opening<'a> {
        unreachable!("the device is open")
    }
    fn host(&self) -> u64 {
        1
    }
    fn is_unwanted(&self) -> bool {
        self.turns.replace(self.turns.get().saturating_sub(1)) == 0
    }
}

fn opener(turns: u64) -> Rc<FencedOpener> {
    FencedOpener::new(Rc::new(Canceled { turns: Cell::new(turns) }))
}

const START: u64 = LABEL_BYTES;
const LEN: u64 = (9 << 20) + 4096;

#[test]
fn a_region_of_a_file_is_written_through_once_from_end_to_end() {
    Runtime::simulated(4051).block_on(async {
        let file = Region::new(true);
        let device: Device = file.clone();
        assert!(write_through(&opener(u64::MAX), &device, START, LEN).await.is_ok());
        let mut end = START;
        for (at, len) in file.written.take() {
            assert_eq!(at, end);
            end += len;
        }
        assert_eq!((end, file.flushes.get()), (START + LEN, 1));
        assert!(file.discarded.borrow().is_empty());
        // A disk has its space already.
        let disk = Region::new(false);
        let device: Device = disk.clone();
        assert!(write_through(&opener(u64::MAX), &device, START, LEN).await.is_ok());
        assert!(disk.written.borrow().is_empty());
        give_back(&device, START, LEN).await;
        assert!(disk.discarded.borrow().is_empty(), "it may hold what is another's");
    });
}

#[test]
fn a_region_whose_command_is_canceled_is_given_back() {
    Runtime::simulated(4052).block_on(async {
        let file = Region::new(true);
        let device: Device = file.clone();
        let outcome = write_through(&opener(2), &device, START, LEN).await;
        assert!(matches!(outcome, Err(WriteThroughError::Unwanted)));
        assert_eq!(file.written.borrow().len(), 2);
        assert_eq!(*file.discarded.borrow(), [(START, LEN)]);
    });
}

#[test]
fn a_device_that_is_too_small_for_a_pool_has_no_label() {
    Runtime::simulated(4053).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        Pool::create(rack.host(1), "tank", &options).await.unwrap().export().await.unwrap();
        let area = rack.device("a").read(0, IoBuf::zeroed(LABEL_BYTES as usize)).await.unwrap();
        let area = area.freeze();
        for (size_bytes, has_label) in [(SIZE - LABEL_BYTES, false), (SIZE, true)] {
            let device: Device = Rc::new(MemoryDevice::new("b", size_bytes));
            device.write(0, area.clone(), true).await.unwrap();
            let label = read_label(&device).await;
            assert_eq!(!label.configs.is_empty(), has_label, "{size_bytes}");
            assert_eq!(!label.roots.is_empty(), has_label, "{size_bytes}");
        }
    });
}

/// What an exported pool has left on its only device.
async fn labeled() -> (Device, Label) {
    let rack = Rack::new(&["a"], SIZE);
    let pool = Pool::create(rack.host(1), "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    for _ in 0..3 {
        pool.log_history("a command");
        pool.sync().await.unwrap();
    }
    pool.export().await.unwrap();
    let device = rack.device("a");
    let label = read_label(&device).await;
    (device, label)
}

#[test]
fn a_label_is_written_durably_to_both_areas() {
    Runtime::simulated(4077).block_on(async {
        let (_, label) = labeled().await;
        let region = Region::new(false);
        let device: Device = region.clone();
        let (mut config, mut root) = (label.configs[0].1.clone(), label.roots[0].clone());
        for number in [6, 7] {
            config.generation = number;
            write_config(&device, 3, &config).await.unwrap();
            let at = label_offsets(SIZE).map(|area| area + number % 2 * CONFIG_SLOT_BYTES);
            assert_eq!(region.durable.take(), at);
            root.commit = forebay_units::CommitId(number + SUPERBLOCK_SLOTS);
            write_root(&device, &root).await.unwrap();
            let slot = SUPERBLOCK_OFFSET_BYTES + number * SUPERBLOCK_BYTES;
            assert_eq!(region.durable.take(), label_offsets(SIZE).map(|area| area + slot));
        }
        let label = read_label(&device).await;
        let read: Vec<(u32, u64)> = label
            .configs
            .iter()
            .map(|(envelope, _)| (envelope.device, envelope.generation))
            .collect();
        assert_eq!(read, [(3, 7), (3, 6)]);
        assert_eq!(label.roots.iter().map(|root| root.commit.0).collect::<Vec<_>>(), [39, 38]);
        write_config_to(&device, 3, &config, SECOND_AREA).await.unwrap();
        assert_eq!(region.durable.take(), [label_offsets(SIZE)[1] + CONFIG_SLOT_BYTES]);
    });
}

#[test]
fn a_label_is_read_from_either_area() {
    Runtime::simulated(4078).block_on(async {
        let (device, whole) = labeled().await;
        assert!(whole.configs.len() == 2 && whole.roots.len() > 2 && whole.heartbeat.is_some());
        assert!(whole.roots.windows(2).all(|two| two[0].commit > two[1].commit));
        assert!(whole.configs[0].0.generation > whole.configs[1].0.generation);
        let zeros = IoBuf::zeroed(LABEL_BYTES as usize).freeze();
        let [first, second] = label_offsets(SIZE);
        let kept = device.read(first, IoBuf::zeroed(LABEL_BYTES as usize)).await.unwrap().freeze();
        device.write(first, zeros.clone(), true).await.unwrap();
        let label = read_label(&device).await;
        assert_eq!((&label.configs, &label.roots), (&whole.configs, &whole.roots));
        device.write(first, kept, true).await.unwrap();
        device.write(second, zeros, true).await.unwrap();
        let label = read_label(&device).await;
        assert_eq!((&label.configs, &label.roots), (&whole.configs, &whole.roots));
        assert_eq!(label.heartbeat, whole.heartbeat);
    });
}

#[test]
fn a_cleared_device_has_nothing_of_its_label_and_all_of_its_body() {
    Runtime::simulated(4079).block_on(async {
        let region = Region::new(false);
        let device: Device = region.clone();
        let junk = IoBuf::copy_of(&vec![0xa5; SIZE as usize]).freeze();
        device.write(0, junk, false).await.unwrap();
        clear_label(&device).await.unwrap();
        let content = device.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
        let (label, end) = (LABEL_BYTES as usize, (SIZE - LABEL_BYTES) as usize);
        assert!(content[..label].iter().chain(&content[end..]).all(|byte| *byte == 0));
        assert!(content[label..end].iter().all(|byte| *byte == 0xa5));
        assert!(region.flushes.get() > 0);
    });
}

// A change that was begun, and never completed by a root, does not count.
#[test]
fn the_configuration_that_the_newest_root_names_counts() {
    Runtime::simulated(4080).block_on(async {
        let (_, mut label) = labeled().await;
        let config = |generation: u64, name: &str| {
            let (mut envelope, mut config) = label.configs[0].clone();
            (config.generation, config.name) = (generation, name.to_owned());
            (envelope.generation, envelope.body) = (generation, config.encode());
            (envelope, config)
        };
        let configs = vec![config(8, "newest"), config(7, "other"), config(7, "named")];
        let sum = crc64(&configs[2].0.body);
        label.configs = configs;
        (label.roots[0].config_generation, label.roots[0].config_sum) = (7, sum);
        let current = |label: &Label| label.current().map(|(_, config)| config.name.clone());
        assert_eq!(current(&label).as_deref(), Some("named"));
        let found = label.config(7, sum).map(|config| config.name.as_str());
        assert_eq!(found, Some("named"));
        assert_eq!(label.config(8, sum), None);
        label.roots[0].config_generation = 9;
        assert_eq!(current(&label).as_deref(), Some("newest"));
        label.roots.clear();
        assert_eq!(current(&label).as_deref(), Some("newest"));
    });
}

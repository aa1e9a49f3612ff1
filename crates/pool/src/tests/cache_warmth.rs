//! What a cache device still has after exports, crashes and failures, and when it is let go.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, MemoryDevice, Operation};
use forebay_format::cache_device::{CacheHeader, CacheShape, SnapshotHeader};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{BlockAddr, Layout, Lba, Nanos};

use super::cache_devices::{BLOCK, BLOCKS, DEVICES, filled, stats, warm, with_cache};
use super::rack::{Rack, paced, scripted};
use super::{expect, names, spec, stamp};
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::{Health, PoolEvent, VdevNote, VdevStatus};
use crate::{OpenWith, Opener, Pool};

const SIZE_BYTES: u64 = 64 << 20;
/// Blocks of a region, and the bytes that are written for it.
const REGION: u64 = 15;
const REGION_BYTES: u64 = 16 * BLOCK;

async fn imported(host: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = ImportOptions::default();
    let pool = Pool::import(host, &names(DEVICES), "tank", &options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

async fn seconds(count: u64) {
    rt::sleep(Nanos::from_secs(count)).await;
}

fn shown(pool: &Pool) -> VdevStatus {
    pool.status().caches.remove(0)
}

/// Reads half of the blocks until the cache device has them.
async fn warm_half(v: &Device, half: u64) {
    for number in 0..3 * BLOCKS / 2 {
        let at = half * BLOCKS / 2 + number * 389 % (BLOCKS / 2);
        expect(v, at * BLOCK, &stamp(BLOCK as usize, at)).await;
        if number % REGION == 0 {
            rt::sleep(Nanos::from_millis(1)).await;
        }
    }
}

/// Makes a pool on the rack, has its cache device filled, and exports it. Returns how many blocks
/// the whole regions of the cache device have; there is one that is not full.
fn exported(seed: u64, rack: &Rc<Rack>) -> u64 {
    let rack = rack.clone();
    Runtime::simulated(seed).block_on(async move {
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        let whole = stats(&pool).used_bytes / BLOCK;
        assert!(whole > BLOCKS / 2 && whole % REGION == 0 && stats(&pool).admitted > whole);
        drop(v);
        pool.export().await.unwrap();
        whole
    })
}

/// The index has the blocks of all whole regions and some of one more.
fn check_loaded(pool: &Pool, whole: u64) {
    let found = stats(pool);
    assert!((whole + 1..whole + REGION).contains(&found.loaded), "{found:?}, {whole}");
    assert_eq!(found.written_bytes, (whole / REGION + 1) * REGION_BYTES);
}

/// Waits until a part of the index has been read.
async fn a_part_is_read(pool: &Pool, blocks: u64) {
    while stats(pool).used_bytes == 0 {
        rt::sleep(Nanos::from_millis(1)).await;
    }
    assert!(stats(pool).loaded == 0 && stats(pool).used_bytes < blocks * BLOCK);
}

/// Reads of "k" take some time, when that is wanted.
fn slow_reads(host: Rc<dyn Opener>, wanted: &Rc<Cell<Nanos>>) -> Rc<dyn Opener> {
    let wanted = wanted.clone();
    paced(host, move |name, operation, _| {
        (name == "k" && operation == Operation::Read).then(|| wanted.get())
    })
}

fn slow_writes(host: Rc<dyn Opener>, wanted: &Rc<Cell<Nanos>>) -> Rc<dyn Opener> {
    let wanted = wanted.clone();
    paced(host, move |name, operation, _| {
        (name == "k" && operation == Operation::Write).then(|| wanted.get())
    })
}

#[test]
fn an_export_notes_all_that_a_cache_device_has_also_what_was_moved() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let (first, held) = (Runtime::simulated(4401), rack.clone());
    let (whole, moved) = first.block_on(async move {
        let (pool, v) = filled(held.host(1), &with_cache()).await;
        warm(&v).await;
        let whole = stats(&pool).used_bytes / BLOCK;
        assert!(stats(&pool).admitted > whole);
        // As the cleaner does.
        let id = pool.volume_named("v").unwrap().id;
        let addr_of = |at| pool.store.map.borrow().lookup(id, Lba(at)).unwrap().addr;
        let has = |addr| pool.cache_devices.contains(pool.block_key(addr));
        let old = (0..BLOCKS).map(addr_of).find(|addr| has(*addr)).unwrap();
        let new = BlockAddr::new(old.segment(), BlockAddr::MAX_BLOCKS - 1);
        pool.rename_cached(old, new);
        assert!(has(new) && !has(old));
        pool.export().await.unwrap();
        (whole, new)
    });
    drop(first);
    let (second, held) = (Runtime::simulated(4402), rack.clone());
    second.block_on(async move {
        let (pool, v) = imported(held.host(1)).await;
        seconds(1).await;
        check_loaded(&pool, whole);
        assert!(pool.cache_devices.contains(pool.block_key(moved)));
        let space = shown(&pool).space.unwrap();
        assert_eq!(space.raw_alloc_bytes, Some(stats(&pool).loaded * BLOCK));
        let capacity = u64::from(CacheShape::of(SIZE_BYTES).capacity_blocks());
        assert_eq!(space.raw_size_bytes, capacity * BLOCK);
        expect(&v, 0, &stamp(BLOCK as usize, 0)).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_of_before_is_not_believed_after_a_crash() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let (first, held) = (Runtime::simulated(4403), rack.clone());
    first.block_on(async move {
        let (pool, v) = filled(held.host(1), &with_cache()).await;
        warm_half(&v, 0).await;
        assert!(stats(&pool).used_bytes > 10 * REGION * BLOCK);
        pool.export().await.unwrap();
    });
    drop(first);
    let (second, held) = (Runtime::simulated(4404), rack.clone());
    let (used, written) = second.block_on(async move {
        let (pool, v) = imported(held.host(1)).await;
        seconds(1).await;
        let before = stats(&pool);
        assert!(before.loaded > 10 * REGION);
        warm_half(&v, 1).await;
        seconds(1).await;
        let now = stats(&pool);
        assert!(now.used_bytes > before.used_bytes + 10 * REGION * BLOCK);
        assert_eq!(now.written_bytes - before.written_bytes, now.admitted / REGION * REGION_BYTES);
        (now.used_bytes, now.written_bytes)
    });
    drop(second);
    Runtime::simulated(4405).block_on(async move {
        let (pool, v) = imported(rack.host(1)).await;
        seconds(1).await;
        let now = stats(&pool);
        assert_eq!((now.loaded * BLOCK, now.written_bytes), (used, written));
        warm(&v).await;
        assert_eq!(shown(&pool).checksum_errors, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_cannot_be_read_of_an_index_is_missing_alone() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let whole = exported(4406, &rack);
    Runtime::simulated(4407).block_on(async move {
        let shape = CacheShape::of(SIZE_BYTES);
        let bad = |offset: u64| rack.switches.bad_blocks.borrow_mut().insert(("k".into(), offset));
        // Without the snapshot, the footers are read.
        bad(shape.snapshot_offset_bytes());
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        check_loaded(&pool, whole);
        assert_eq!(shown(&pool).state, Health::Online);
        drop(pool);
    });
}

#[test]
fn an_index_without_one_of_its_footers_lacks_one_region() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let (first, held) = (Runtime::simulated(4408), rack.clone());
    let used = first.block_on(async move {
        let (pool, v) = filled(held.host(1), &with_cache()).await;
        warm(&v).await;
        stats(&pool).used_bytes
    });
    drop(first);
    Runtime::simulated(4409).block_on(async move {
        let footer = CacheShape::of(SIZE_BYTES).footer_offset_bytes(2);
        rack.switches.bad_blocks.borrow_mut().insert(("k".into(), footer));
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        assert_eq!(stats(&pool).loaded, used / BLOCK - REGION);
        assert_eq!(stats(&pool).written_bytes, used / BLOCK / REGION * REGION_BYTES);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_of_an_earlier_use_is_not_believed() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    exported(4410, &rack);
    let (second, held) = (Runtime::simulated(4411), rack.clone());
    let (used, written) = second.block_on(async move {
        let (pool, v) = imported(held.host(1)).await;
        seconds(1).await;
        pool.remove("k").await.unwrap();
        assert!(pool.cache_devices.is_empty());
        let add = PoolSpec { caches: names(&["k"]), ..PoolSpec::default() };
        pool.add(&add).await.unwrap();
        seconds(1).await;
        assert_eq!((stats(&pool).loaded, stats(&pool).written_bytes), (0, 0));
        warm(&v).await;
        (stats(&pool).used_bytes, stats(&pool).written_bytes)
    });
    assert!(used > 0);
    drop(second);
    Runtime::simulated(4412).block_on(async move {
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        let now = stats(&pool);
        assert_eq!((now.loaded * BLOCK, now.written_bytes), (used, written));
        pool.export().await.unwrap();
    });
}

#[test]
fn an_export_while_an_index_is_read_leaves_it_whole() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let whole = exported(4413, &rack);
    Runtime::simulated(4414).block_on(async move {
        let reads_take = Rc::new(Cell::new(Nanos::from_millis(20)));
        let (pool, v) = imported(slow_reads(rack.host(1), &reads_take)).await;
        a_part_is_read(&pool, whole).await;
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        check_loaded(&pool, whole);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_goes_offline_while_its_index_is_read_stays_so_and_is_let_go() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let whole = exported(4415, &rack);
    Runtime::simulated(4416).block_on(async move {
        let reads_take = Rc::new(Cell::new(Nanos::from_millis(20)));
        let (pool, v) = imported(slow_reads(rack.locked(), &reads_take)).await;
        a_part_is_read(&pool, whole).await;
        pool.offline("k").await.unwrap();
        seconds(3).await;
        assert_eq!((shown(&pool).state, shown(&pool).note), (Health::Offline, None));
        assert_eq!(stats(&pool).used_bytes, 0);
        assert!(rack.locked().open("k").await.is_ok(), "the pool still has it open");
        reads_take.set(Nanos::ZERO);
        pool.online("k").await.unwrap();
        seconds(1).await;
        assert_eq!(shown(&pool).state, Health::Online);
        check_loaded(&pool, whole);
        assert!(rack.locked().open("k").await.is_err());
        warm(&v).await;
        drop(v);
        pool.export().await.unwrap();
        // The server goes on without the pool.
        assert!(rack.locked().open("k").await.is_ok());
        drop(pool);
    });
}

/// The device "k" fails as many writes of regions as it is told to.
#[derive(Default)]
struct FailedRegions(Cell<u64>);

impl Script for FailedRegions {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_region = command.operation == Operation::Write && command.len_bytes == REGION_BYTES;
        let fails = self.0.get() > 0 && command.device == "k" && is_region;
        if fails {
            self.0.set(self.0.get() - 1);
        }
        let kind = ErrorKind::Os { errno: 5 };
        let decision = if fails { Decision::Fail(kind) } else { Decision::Run };
        Box::pin(async move { decision })
    }
}

#[test]
fn an_export_whose_last_region_cannot_be_written_leaves_the_others() {
    Runtime::simulated(4417).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let failures = Rc::<FailedRegions>::default();
        let host = scripted(rack.host(1), failures.clone());
        let (pool, v) = filled(host, &with_cache()).await;
        warm(&v).await;
        let (admitted, used) = (stats(&pool).admitted, stats(&pool).used_bytes);
        assert!(admitted % REGION > 0);
        failures.0.set(1);
        drop(v);
        pool.export().await.unwrap();
        assert_eq!(failures.0.get(), 0);
        drop(pool);
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        let now = stats(&pool);
        assert_eq!(now.loaded * BLOCK, used);
        assert_eq!(now.written_bytes, admitted / REGION * REGION_BYTES);
        pool.export().await.unwrap();
    });
}

#[test]
fn an_export_has_ended_when_the_index_is_written() {
    Runtime::simulated(4428).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let writes_take = Rc::new(Cell::new(Nanos::ZERO));
        let (pool, v) = filled(slow_writes(rack.host(1), &writes_take), &with_cache()).await;
        warm(&v).await;
        drop(v);
        writes_take.set(Nanos::from_secs(1));
        pool.export().await.unwrap();
        let at = CacheShape::of(SIZE_BYTES).snapshot_offset_bytes();
        let block = rack.device("k").read(at, IoBuf::zeroed(BLOCK as usize)).await.unwrap();
        assert!(SnapshotHeader::decode(&block).is_ok());
    });
}

/// Reads of the device "k" fail after a while, and writes take longer, when that is wanted.
#[derive(Default)]
struct LateFailures(Cell<bool>);

impl Script for LateFailures {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_meant = self.0.get() && command.device == "k";
        let is_read = command.operation == Operation::Read;
        Box::pin(async move {
            if !is_meant {
                return Decision::Run;
            }
            rt::sleep(Nanos::from_millis(if is_read { 20 } else { 30 })).await;
            if is_read { Decision::Fail(ErrorKind::Gone) } else { Decision::Run }
        })
    }
}

#[test]
fn a_device_that_a_reader_gives_up_during_an_export_keeps_what_it_has() {
    Runtime::simulated(4427).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let failures = Rc::<LateFailures>::default();
        let host = scripted(rack.host(1), failures.clone());
        let (pool, v) = filled(host, &with_cache()).await;
        warm(&v).await;
        let used = stats(&pool).used_bytes;
        failures.0.set(true);
        let reading = rt::spawn(async move {
            let whole = IoBuf::zeroed((BLOCKS * BLOCK) as usize);
            v.read(0, whole).await.map(drop)
        });
        rt::sleep(Nanos::from_millis(1)).await;
        pool.export().await.unwrap();
        reading.await.unwrap();
        let failed = |event: &PoolEvent| matches!(event, PoolEvent::CacheDeviceFailed { .. });
        assert!(pool.events().iter().any(failed), "{:?}", pool.events());
        drop(pool);
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        assert!(stats(&pool).loaded * BLOCK >= used, "{:?}", stats(&pool));
        assert!(stats(&pool).written_bytes >= used / REGION / BLOCK * REGION_BYTES);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_cannot_be_written_is_given_up_with_its_error_shown() {
    Runtime::simulated(4418).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let failures = Rc::<FailedRegions>::default();
        let host = scripted(rack.host(1), failures.clone());
        let (pool, v) = filled(host, &with_cache()).await;
        failures.0.set(u64::MAX);
        warm(&v).await;
        let device = shown(&pool);
        assert_eq!(device.state, Health::Faulted);
        let errors = (device.read_errors, device.write_errors, device.checksum_errors);
        assert_eq!(errors, (0, 1, 0));
        assert!(matches!(device.note, Some(VdevNote::NotOpened { .. })), "{:?}", device.note);
        failures.0.set(0);
        pool.online("k").await.unwrap();
        seconds(1).await;
        let device = shown(&pool);
        assert_eq!((device.state, device.write_errors, device.note), (Health::Online, 0, None));
        warm(&v).await;
        assert!(stats(&pool).hits > 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_goes_offline_while_regions_wait_writes_them_no_more() {
    Runtime::simulated(4419).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let writes_take = Rc::new(Cell::new(Nanos::ZERO));
        let (pool, v) = filled(slow_writes(rack.host(1), &writes_take), &with_cache()).await;
        writes_take.set(Nanos::from_secs(1));
        warm_half(&v, 0).await;
        // One is being written, and four wait.
        assert_eq!(stats(&pool).admitted, 5 * REGION);
        assert!(stats(&pool).refused_busy > 0);
        pool.offline("k").await.unwrap();
        seconds(5).await;
        assert_eq!((shown(&pool).state, stats(&pool).used_bytes), (Health::Offline, 0));
        writes_take.set(Nanos::ZERO);
        pool.online("k").await.unwrap();
        seconds(1).await;
        assert_eq!(shown(&pool).state, Health::Online);
        assert!(stats(&pool).loaded <= REGION, "only one was written");
        warm(&v).await;
        assert!(stats(&pool).hits > 0);
        assert_eq!(shown(&pool).checksum_errors, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_removed_device_has_no_header_when_the_command_ends() {
    Runtime::simulated(4420).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE_BYTES);
        let writes_take = Rc::new(Cell::new(Nanos::ZERO));
        let (pool, v) = filled(slow_writes(rack.host(1), &writes_take), &with_cache()).await;
        let header = async || {
            let block = rack.device("k").read(0, IoBuf::zeroed(BLOCK as usize)).await.unwrap();
            CacheHeader::decode(&block).ok()
        };
        assert!(header().await.is_some());
        writes_take.set(Nanos::from_secs(2));
        pool.remove("k").await.unwrap();
        assert_eq!(header().await, None);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn cache_devices_that_are_made_with_the_pool_are_in_use_at_once() {
    Runtime::simulated(4421).block_on(async move {
        let rack = Rack::new(&["a", "k1", "k2", "k3"], SIZE_BYTES);
        let caches = names(&["k1", "k2", "k3"]);
        let made = PoolSpec { caches, ..spec(Layout::Raid0, &["a"], &[]) };
        let pool = Pool::create(rack.locked(), "tank", &made).await.unwrap();
        rt::sleep(Nanos::from_millis(1)).await;
        let is_online = |device: &VdevStatus| device.state == Health::Online && device.io.reads > 0;
        assert!(pool.status().caches.iter().all(is_online), "{:?}", pool.status().caches);
        pool.export().await.unwrap();
    });
}

#[test]
fn blocks_go_to_the_other_device_while_one_is_offline() {
    Runtime::simulated(4422).block_on(async move {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "k2"], SIZE_BYTES);
        let spec = PoolSpec { caches: names(&["k", "k2"]), ..with_cache() };
        let (pool, v) = filled(rack.host(1), &spec).await;
        seconds(1).await;
        pool.offline("k").await.unwrap();
        warm(&v).await;
        let devices = pool.stats().cache_devices;
        assert_eq!(devices[0].admitted, 0);
        assert!(devices[1].admitted > BLOCKS / 2 && devices[1].hits > 0, "{devices:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn status_says_why_a_device_is_missing_until_it_is_back_or_offline() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    exported(4423, &rack);
    Runtime::simulated(4424).block_on(async move {
        rack.pull(&["k"]);
        let (pool, _) = imported(rack.host(1)).await;
        seconds(1).await;
        let device = shown(&pool);
        assert_eq!(device.state, Health::Unavail);
        assert!(matches!(device.note, Some(VdevNote::NotOpened { .. })), "{:?}", device.note);
        pool.offline("k").await.unwrap();
        assert_eq!((shown(&pool).state, shown(&pool).note), (Health::Offline, None));
        rack.put_back(&["k"]);
        pool.online("k").await.unwrap();
        seconds(1).await;
        assert_eq!((shown(&pool).state, shown(&pool).note), (Health::Online, None));
        pool.export().await.unwrap();
    });
}

/// A device "k" of another size that begins as the rack's one does.
async fn resized(rack: &Rack, size_bytes: u64) -> Device {
    let begin = rack.device("k").read(0, IoBuf::zeroed(8 << 20)).await.unwrap();
    let device: Device = Rc::new(MemoryDevice::new("k", size_bytes));
    device.write(0, begin.freeze(), true).await.unwrap();
    device
}

fn with_device(rack: &Rc<Rack>, device: Device) -> Rc<dyn Opener> {
    let rack = rack.clone();
    OpenWith::new(1, move |name| match name {
        "k" => Ok(device.clone()),
        _ => rack.open_here(name),
    })
}

#[test]
fn a_cache_device_may_have_grown_and_not_shrunk() {
    let rack = Rack::new(DEVICES, SIZE_BYTES);
    let whole = exported(4425, &rack);
    Runtime::simulated(4426).block_on(async move {
        let larger = resized(&rack, 96 << 20).await;
        let (pool, v) = imported(with_device(&rack, larger)).await;
        seconds(1).await;
        assert_eq!(shown(&pool).state, Health::Online);
        check_loaded(&pool, whole);
        warm(&v).await;
        assert_eq!(shown(&pool).checksum_errors, 0);
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let smaller = resized(&rack, 32 << 20).await;
        let (pool, v) = imported(with_device(&rack, smaller)).await;
        seconds(1).await;
        let refused = (Health::Unavail, Some(VdevNote::OtherPool { name: "tank".into() }));
        assert_eq!((shown(&pool).state, shown(&pool).note), refused);
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        // A header that describes another device than the one that was added.
        let k = rack.device("k");
        let block = k.read(0, IoBuf::zeroed(BLOCK as usize)).await.unwrap();
        let mut header = CacheHeader::decode(&block).unwrap();
        header.shape.regions -= 1;
        k.write(0, IoBuf::copy_of(&header.encode()).freeze(), true).await.unwrap();
        let (pool, v) = imported(rack.host(1)).await;
        seconds(1).await;
        assert_eq!((shown(&pool).state, shown(&pool).note), refused);
        drop(v);
        pool.export().await.unwrap();
    });
}

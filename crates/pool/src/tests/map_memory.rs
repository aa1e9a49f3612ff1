//! Imports with little memory.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{ErrorKind, IoBuf};
use forebay_format::label::{
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS, label_offsets,
};
use forebay_format::superblock::Superblock;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{SIZE, check, make};
use super::rack::Rack;
use super::{spec, stamp, volume};
use crate::import::load_map::room_for_map;
use crate::spec::ImportOptions;
use crate::status::PoolEvent;
use crate::{ImportErrorKind, MapLoadError, MapTooLarge, Opener, Opening, Pool};

/// A machine that leaves so many bytes to a process.
struct Small {
    inner: Rc<dyn Opener>,
    free_bytes: Cell<u64>,
}

impl Opener for Small {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.inner.open(path)
    }

    fn host(&self) -> u64 {
        self.inner.host()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        Some(self.free_bytes.get())
    }
}

async fn import(rack: &Rc<Rack>, free_bytes: u64) -> Result<Rc<Pool>, ImportErrorKind> {
    let machine = Rc::new(Small { inner: rack.host(1), free_bytes: free_bytes.into() });
    let paths = ["a".to_owned(), "b".to_owned()];
    let pool = Pool::import(machine, &paths, "tank", &ImportOptions::default()).await;
    pool.map_err(|error| error.kind)
}

/// Imports with so much memory, which must be too little, and write nothing.
async fn refused(rack: &Rc<Rack>, free_bytes: u64) -> MapTooLarge {
    let before = rack.changes();
    let kind = import(rack, free_bytes).await.err().expect("it is refused");
    assert_eq!(rack.changes(), before, "after: {kind}");
    match kind {
        ImportErrorKind::Map { error, .. } => match *error {
            MapLoadError::NoMemory(map) => *map,
            other => panic!("refused for another reason: {other}"),
        },
        other => panic!("refused for another reason: {other}"),
    }
}

/// Makes the roots of a device what they were before roots told of the map's size.
async fn forget_map_size(rack: &Rc<Rack>, name: &str) {
    let device = rack.device(name);
    for area in label_offsets(SIZE) {
        for slot in 0..SUPERBLOCK_SLOTS {
            let at = area + SUPERBLOCK_OFFSET_BYTES + slot * SUPERBLOCK_BYTES;
            let bytes = device.read(at, IoBuf::zeroed(SUPERBLOCK_BYTES as usize)).await.unwrap();
            if let Ok(mut root) = Superblock::decode(&bytes) {
                root.counters[22..25].fill(0);
                let bytes = IoBuf::copy_of(&root.encode()).freeze();
                device.write(at, bytes, true).await.unwrap();
            }
        }
    }
}

#[test]
fn an_import_without_room_for_the_map_is_refused() {
    let rack = Rack::new(&["a", "b"], SIZE);
    Runtime::simulated(1).block_on(async move {
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &[]).await;
        pool.sync().await.unwrap();
        let took = pool.stats().map_memory_bytes;
        pool.export().await.unwrap();
        drop(pool);
        // Memory that leaves a map of some bytes more than half of what it takes.
        let tight = (64 << 20) + (64 << 20) / 7 + took / 2;
        assert!((1..took).contains(&room_for_map(tight)));
        let map = refused(&rack, tight).await;
        assert!(map.is_whole && map.needed_bytes > room_for_map(tight), "{map:?}");
        assert_eq!((map.volume.as_str(), map.room_bytes), ("v", room_for_map(tight)));
        assert!(map.volume_bytes > 0 && map.volume_bytes < map.needed_bytes, "{map:?}");
        // Roots of earlier programs say nothing; then what has been read counts.
        for name in ["a", "b"] {
            forget_map_size(&rack, name).await;
        }
        let map = refused(&rack, tight).await;
        assert!(!map.is_whole && map.needed_bytes > 0, "{map:?}");
        assert_eq!(map.volume, "v");
        let pool = import(&rack, 1 << 30).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_map_that_memory_is_too_short_for_does_not_grow() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let machine = Rc::new(Small { inner: rack.host(1), free_bytes: Cell::new(1 << 30) });
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(machine.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let write =
            async |at: u64| v.write(at, stamp(4096, at), true).await.map_err(|error| error.kind);
        write(0).await.unwrap();
        machine.free_bytes.set(50 << 20);
        pool.sync().await.unwrap();
        assert_eq!((write(0).await, write(4096).await), (Ok(()), Err(ErrorKind::NoSpace)));
        machine.free_bytes.set(20 << 20);
        pool.sync().await.unwrap();
        assert_eq!(write(0).await, Err(ErrorKind::NoSpace));
        v.discard(0, 4096, true).await.unwrap();
        let short = |event: &PoolEvent| matches!(event, PoolEvent::MemoryShort { .. });
        assert_eq!(pool.events().iter().filter(|event| short(event)).count(), 1);
        // It is looked at again without a commit.
        machine.free_bytes.set(1 << 30);
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!((write(0).await, write(4096).await), (Ok(()), Ok(())));
    });
}

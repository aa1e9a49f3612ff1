//! What a pool tells of repairs, and what it thinks of a device that needs many.

use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::copies::scrub;
use super::rack::Rack;
use super::{spec, stamp, volume};
use crate::Pool;
use crate::status::{Health, PoolEvent, VdevNote};

const BLOCK: usize = 4096;
/// Bytes of one write.
const RUN: usize = 64 << 10;
const RUNS: u64 = 12;
const SIZE: u64 = 64 << 20;

/// Where a device has the first block of each write.
async fn places(rack: &Rc<Rack>, name: &str) -> Vec<u64> {
    let held = rack.device(name).read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
    let firsts: Vec<Vec<u8>> = (0..RUNS).map(|run| stamp(RUN, run)[..BLOCK].to_vec()).collect();
    let at = |first: &Vec<u8>| held.chunks(BLOCK).rposition(|block| block == first);
    firsts.iter().map(|first| (at(first).expect("it was written") * BLOCK) as u64).collect()
}

async fn strike(rack: &Rc<Rack>, name: &str, at: &[u64]) {
    for at in at {
        let junk = IoBuf::copy_of(&[0xee; BLOCK]).freeze();
        rack.device(name).write(*at, junk, false).await.unwrap();
    }
}

/// Devices and lengths of the repairs, and devices that had many of them.
fn told(pool: &Pool) -> (Vec<(String, u64)>, Vec<String>) {
    let (mut repairs, mut many) = (Vec::new(), Vec::new());
    for event in pool.events() {
        match event {
            PoolEvent::Repaired { device, len_bytes, .. } => repairs.push((device, len_bytes)),
            PoolEvent::ManyRepairs { device } => many.push(device),
            _ => {}
        }
    }
    (repairs, many)
}

#[test]
fn repairs_are_told_of_and_counted_and_many_of_them_make_a_device_suspect() {
    Runtime::simulated(7420).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for run in 0..RUNS {
            v.write(run * RUN as u64, stamp(RUN, run), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let places = places(&rack, "b").await;
        let seen = |name: &str| {
            let status = pool.status();
            let mut members = status.groups[0].children.iter();
            let member = members.find(|member| member.name == name).unwrap();
            (member.state, member.note.clone())
        };
        strike(&rack, "b", &places[..9]).await;
        assert_eq!(scrub(&pool).await, (9 * BLOCK as u64, 0));
        let one = ("b".to_owned(), BLOCK as u64);
        assert_eq!(told(&pool), (vec![one.clone(); 9], Vec::new()));
        assert_eq!(pool.stats().since_import.media.repair, 9 * BLOCK as u64);
        assert_eq!(seen("b"), (Health::Online, None));
        strike(&rack, "b", &places[9..11]).await;
        assert_eq!(scrub(&pool).await, (2 * BLOCK as u64, 0));
        assert_eq!(told(&pool), (vec![one; 11], vec!["b".to_owned()]));
        assert_eq!(pool.stats().since_import.media.repair, 11 * BLOCK as u64);
        assert_eq!(seen("b"), (Health::Degraded, Some(VdevNote::TooManyErrors)));
        assert_eq!(seen("a"), (Health::Online, None));
        // It stays in use.
        assert_eq!(scrub(&pool).await, (0, 0));
        pool.export().await.unwrap();
    });
}

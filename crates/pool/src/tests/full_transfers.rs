//! Receiving into a pool that has too little room.

use std::rc::Rc;

use forebay_device::Device;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::memory;
use super::transfers::{PLAIN, receive, sent, since, snapshot, whole};
use super::{expect, spec, stamp, volume};
use crate::spec::VolumeSpec;
use crate::{LeftBy, Pool};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4096;
/// Leaves of the map, more than one group takes back.
const LEAVES: u64 = 300;

/// Where block `number` lies: in each leaf some.
fn at(number: u64) -> u64 {
    (number % LEAVES * 512 + number / LEAVES) * BLOCK
}

async fn empty(name: &str) -> Rc<Pool> {
    let spec = spec(Layout::Raid0, &["a"], &["l"]);
    Pool::create(memory(&["a", "l"], 64 << 20), name, &spec).await.unwrap()
}

/// Writes blocks, `step` apart.
async fn write(v: &Device, step: usize, salt: u64) {
    for number in (0..BLOCKS).step_by(step) {
        v.write(at(number), stamp(4096, number + salt), false).await.unwrap();
    }
}

/// Checks that every other block has been written with `salt`, and the others with none.
async fn holds(v: &Device, salt: u64) {
    for number in 0..BLOCKS {
        let salt = if number % 2 == 0 { salt } else { 0 };
        expect(v, at(number), &stamp(4096, number + salt)).await;
    }
}

#[test]
fn a_stream_for_which_there_is_no_room_leaves_the_volume_as_it_was() {
    Runtime::simulated(1).block_on(async {
        let tank = empty("tank").await;
        let sparse = VolumeSpec { sparse: true, ..volume(LEAVES * 512 * BLOCK) };
        tank.create_volume(&sparse).await.unwrap();
        let v = tank.open_volume("v").unwrap();
        write(&v, 1, 0).await;
        snapshot(&tank, "v@a").await;
        write(&v, 2, BLOCKS).await;
        snapshot(&tank, "v@b").await;
        let first = sent(&tank, &whole("v@a")).await;
        let step = sent(&tank, &since("a", "v@b")).await;
        let back = empty("back").await;
        receive(&back, &first, PLAIN).await.unwrap();
        let room = 1490;
        let filler = VolumeSpec { name: "f".into(), ..volume((back.free_blocks() - room) * BLOCK) };
        back.create_volume(&filler).await.unwrap();
        let mut receiver = back.receive("w", PLAIN);
        let mut failed = None;
        for chunk in &step {
            // A part of the stream is in the map when it fails.
            back.sync().await.unwrap();
            failed = receiver.feed(chunk).await.err();
            if failed.is_some() {
                break;
            }
        }
        assert!(failed.is_some_and(|error| error.to_string().contains("space")));
        assert!(back.free_blocks() < 4, "less than its entries in the map take");
        assert_eq!(receiver.give_up().await, LeftBy::Nothing);
        assert_eq!(back.free_blocks(), room);
        holds(&back.open_volume("w").expect("it is there as before"), 0).await;
        holds(&back.open_snapshot("w@a").unwrap(), 0).await;
        back.destroy_volume("f", false).await.unwrap();
        receive(&back, &step, PLAIN).await.unwrap();
        holds(&back.open_snapshot("w@b").unwrap(), BLOCKS).await;
        holds(&back.open_snapshot("w@a").unwrap(), 0).await;
    });
}

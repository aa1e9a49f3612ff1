//! An array with requests beside each other, against a model: clients that write, read and discard,
//! members that fail, return and are replaced, wrong blocks, a scrub, and power cuts.

#[path = "../common/mod.rs"]
mod common;
mod disks;
mod model;

use std::rc::Rc;

use forebay_array::{ArrayError, Health};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Rng, Seed, random_fates};
use forebay_units::{Layout, Nanos};

use model::{Model, Rack};

const CLIENTS: usize = 4;
const BOOTS: u64 = 6;

async fn client(model: Rc<Model>, mut rng: Rng) {
    while !model.is_over.get() {
        match rng.below(12) {
            0..5 => model.write(&mut rng).await,
            5..9 => model.read(&mut rng).await,
            9 => model.drop_segment(&mut rng).await,
            10 => model.kill_blocks(&mut rng),
            _ => rt::sleep(Nanos::from_micros(rng.below(500))).await,
        }
        // Commands that find nothing to do take no time.
        rt::sleep(Nanos::from_micros(1)).await;
    }
}

async fn committer(model: Rc<Model>, mut rng: Rng) {
    while !model.is_over.get() {
        rt::sleep(Nanos::from_micros(rng.below(2_000))).await;
        model.commit().await;
        model.audit();
    }
}

async fn scrubber(model: Rc<Model>, mut rng: Rng) {
    while !model.is_over.get() {
        rt::sleep(Nanos::from_micros(rng.below(5_000))).await;
        model.scrub().await;
    }
}

/// Something happens to a column that may be hurt.
async fn hurt(model: &Model, column: usize, rng: &mut Rng) {
    let (id, disk) = model.disk_of(column, rng);
    match rng.below(7) {
        0 => disk.fails_writes.set(true),
        1 => disk.fails_flushes.set(true),
        2 => disk.is_gone.set(true),
        3 => match model.rig.array.offline(id).await {
            Ok(()) | Err(ArrayError::WouldLose { .. }) => {}
            Err(other) => panic!("{other}"),
        },
        4 => model.replace(column),
        _ => {
            let blocks = model.blocks_on_disk();
            for _ in 0..rng.below(8).min(blocks.len() as u64) {
                let block = *rng.pick(&blocks);
                match rng.below(3) {
                    0 => disk.flip(block),
                    1 => disk.misdirect(*rng.pick(&blocks), block),
                    _ => disk.lose(block),
                }
            }
        }
    }
}

async fn operator(model: Rc<Model>, mut rng: Rng) {
    while !model.is_over.get() {
        rt::sleep(Nanos::from_micros(rng.below(3_000))).await;
        let hurt_columns = model.rack.hurt_columns();
        if !hurt_columns.is_empty() && rng.chance(500) {
            model.bring_back(*rng.pick(&hurt_columns), &mut rng).await;
            continue;
        }
        let column = rng.below(model.rack.geometry.members as u64) as usize;
        if model.rack.hurt(column) {
            hurt(&model, column, &mut rng).await;
        }
    }
}

/// The array after what happened before, with everything beside each other.
async fn begin(rack: &Rc<Rack>, seed: Seed) -> (Rc<Model>, Vec<rt::JoinHandle<()>>) {
    let model = Model::open(rack);
    let mut rng = seed.derive("begin").rng();
    model.audit();
    model.read_all(&mut rng).await;
    let mut tasks: Vec<rt::JoinHandle<()>> = Vec::new();
    for number in 0..CLIENTS {
        let rng = seed.derive(&format!("client {number}")).rng();
        tasks.push(rt::spawn(client(model.clone(), rng)));
    }
    tasks.push(rt::spawn(committer(model.clone(), seed.derive("committer").rng())));
    tasks.push(rt::spawn(scrubber(model.clone(), seed.derive("scrubber").rng())));
    tasks.push(rt::spawn(operator(model.clone(), seed.derive("operator").rng())));
    (model, tasks)
}

fn until_cut(rack: &Rc<Rack>, seed: Seed) {
    let runtime = Runtime::simulated(seed.0);
    let mine = rack.clone();
    let outcome = runtime.run(async move {
        let _all = begin(&mine, seed).await;
        rt::sleep(Nanos::from_micros(seed.derive("cut").rng().below(60_000))).await;
        mine.world.power_cut();
        rt::yield_now().await;
    });
    assert!(outcome.is_none());
    drop(runtime);
    rack.world.draw_crash_outcome(random_fates(&mut seed.derive("fates").rng()));
    rack.world.power_on();
}

fn until_whole(rack: &Rc<Rack>, seed: Seed) {
    let mine = rack.clone();
    Runtime::simulated(seed.0).block_on(async move {
        let (model, tasks) = begin(&mine, seed).await;
        rt::sleep(Nanos::from_millis(30)).await;
        model.is_over.set(true);
        for task in tasks {
            task.await;
        }
        let mut rng = seed.derive("end").rng();
        for _ in 0..20 {
            for column in mine.hurt_columns() {
                model.bring_back(column, &mut rng).await;
            }
        }
        model.rebuild().await;
        model.scrub().await;
        model.commit().await;
        assert_eq!(mine.hurt_columns(), Vec::<usize>::new());
        assert_eq!(model.rig.array.health(), [Health::Online]);
        model.check_whole().await;
        model.read_all(&mut rng).await;
    });
}

#[test]
fn requests_beside_failures_repairs_and_power_cuts_are_as_a_model_says() {
    let shapes = [
        (Layout::Mirror, 2),
        (Layout::Mirror, 3),
        (Layout::Raidz1, 3),
        (Layout::Raidz1, 4),
        (Layout::Raidz2, 4),
        (Layout::Raidz2, 5),
        (Layout::Raidz3, 5),
    ];
    for (number, (layout, members)) in shapes.into_iter().cycle().take(70).enumerate() {
        let seed = Seed(number as u64);
        let rack = Rack::new(layout, members, seed);
        for boot in 0..BOOTS {
            until_cut(&rack, seed.derive(&format!("boot {boot}")));
        }
        until_whole(&rack, seed.derive("whole"));
    }
}

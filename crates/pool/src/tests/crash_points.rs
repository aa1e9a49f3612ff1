//! Commands on devices: whenever the power fails, the next import finds a whole pool, and every
//! answered write.

use std::rc::Rc;

use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec};
use crate::{AdminError, Pool};

const DEVICES: &[&str] = &["a", "b", "c", "l", "m"];
const SIZE: u64 = 64 << 20;
const PART: u64 = 64 << 10;

/// Runs a command on a mirror of `data` with these log devices, one test for each number of changes
/// after which the power fails.
fn survives_every_crash<C>(data: &'static [&str], logs: &'static [&[&str]], command: C)
where
    C: AsyncFn(Rc<Pool>) -> Result<(), AdminError> + Copy + 'static,
{
    for cut in (0..).step_by(3) {
        let rack = Rack::new(DEVICES, SIZE);
        let mine = rack.clone();
        // Whether the power failed, and whether the last write was answered before.
        let (failed, answered) = Runtime::simulated(cut).block_on(async move {
            let mut options = spec(Layout::Mirror, data, &[]);
            options.logs = logs.iter().map(|sides| LogSpec { devices: names(sides) }).collect();
            let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
            pool.create_volume(&volume(4 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(PART as usize, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            // This is in the log alone.
            v.write(PART, stamp(PART as usize, 2), true).await.unwrap();
            mine.switches.power.set(Some(cut));
            let outcome = command(pool.clone()).await;
            let has_power = || mine.switches.power.get() != Some(0);
            assert!(outcome.is_ok() || !has_power(), "after {cut} changes: {outcome:?}");
            let written = v.write(2 * PART, stamp(PART as usize, 3), true).await;
            (!has_power(), written.is_ok() && has_power())
        });
        Runtime::simulated(cut + 10_000).block_on(async move {
            rack.switches.power.set(None);
            let options = ImportOptions::default();
            let imported = Pool::import(rack.host(1), &names(DEVICES), "tank", &options).await;
            let pool = imported.unwrap_or_else(|e| panic!("after {cut} changes: {e}"));
            let v = pool.open_volume("v").unwrap();
            for number in 0..if answered { 3 } else { 2 } {
                expect(&v, number * PART, &stamp(PART as usize, number + 1)).await;
            }
            v.write(2 * PART, stamp(PART as usize, 4), true).await.unwrap();
            pool.export().await.unwrap();
        });
        if !failed {
            assert!(cut > 4, "only {cut} changes");
            break;
        }
    }
}

#[test]
fn log_device_that_is_removed_is_needed_or_not_at_every_crash_point() {
    let both: &[&[&str]] = &[&["l"], &["m"]];
    survives_every_crash(&["a", "b"], both, async |pool: Rc<Pool>| pool.remove("l").await);
    survives_every_crash(&["a", "b"], &[&["l"]], async |pool: Rc<Pool>| pool.remove("l").await);
}

#[test]
fn side_of_a_log_comes_and_goes_at_every_crash_point() {
    let sides: &[&[&str]] = &[&["l", "m"]];
    survives_every_crash(&["a", "b"], sides, async |pool: Rc<Pool>| pool.detach("l").await);
    survives_every_crash(&["a", "b"], sides, async |pool: Rc<Pool>| pool.offline("l").await);
    let one: &[&[&str]] = &[&["l"]];
    survives_every_crash(&["a", "b"], one, async |pool: Rc<Pool>| {
        pool.attach("l", "m", false).await
    });
    survives_every_crash(&["a", "b"], one, async |pool: Rc<Pool>| {
        pool.replace("l", Some("m"), false).await
    });
}

#[test]
fn data_device_comes_and_goes_at_every_crash_point() {
    let log: &[&[&str]] = &[&["l"]];
    survives_every_crash(&["a", "b", "c"], log, async |pool: Rc<Pool>| pool.detach("a").await);
    survives_every_crash(&["a", "b", "c"], &[], async |pool: Rc<Pool>| pool.offline("a").await);
    survives_every_crash(&["a", "b"], log, async |pool: Rc<Pool>| {
        pool.attach("a", "c", false).await
    });
    survives_every_crash(&["a", "b"], log, async |pool: Rc<Pool>| {
        pool.replace("a", Some("c"), false).await
    });
}

#[test]
fn groups_and_logs_are_added_at_every_crash_point() {
    survives_every_crash(&["a", "b"], &[], async |pool: Rc<Pool>| {
        let group = GroupSpec { layout: Layout::Mirror, devices: names(&["c", "m"]) };
        let logs = vec![LogSpec { devices: names(&["l"]) }];
        pool.add(&PoolSpec { groups: vec![group], logs, ..PoolSpec::default() }).await
    });
}

use std::collections::BTreeMap;

use forebay_rt::Runtime;
use forebay_units::{Layout, Nanos};

use super::*;
use crate::SendOptions;
use crate::spec::{ImportOptions, VolumeSpec};
use crate::tests::rack::memory;
use crate::tests::{expect, names, spec, stamp, volume};

async fn minutes(count: u64) {
    rt::sleep(Nanos::from_secs(60 * count)).await;
}

/// Names of the snapshots of `v` of a kind, oldest first.
fn taken(pool: &Pool, kind: &str) -> Vec<String> {
    let all = pool.snapshots_of_spec("v@%").unwrap();
    let is_mine = |name: &String| {
        let kind = Kind::parse(kind);
        name.split_once('@').is_some_and(|(_, name)| kind_of(name) == kind)
    };
    all.into_iter().filter(is_mine).collect()
}

async fn pool_with(schedule: &str) -> (Rc<Pool>, Rc<dyn crate::Opener>) {
    let shelf = memory(&["a", "l"], 64 << 20);
    let made = Pool::create(shelf.clone(), "tank", &spec(Layout::Raid0, &["a"], &["l"])).await;
    let pool = made.unwrap();
    let properties = BTreeMap::from([(SNAPSHOT_EVERY.to_owned(), schedule.to_owned())]);
    let sparse = VolumeSpec { sparse: true, properties, ..volume(8 << 20) };
    pool.create_volume(&sparse).await.unwrap();
    (pool, shelf)
}

#[test]
fn schedules_are_kinds_with_counts() {
    let good = [("off", 0), ("hourly=24", 1), ("hourly=24,daily=7,weekly=4", 3), ("yearly=1", 1)];
    for (text, kinds) in good {
        assert_eq!(Schedule::parse(text).map(|s| s.0.len()), Some(kinds), "{text}");
    }
    for text in
        ["", "hourly", "hourly=", "hourly=-1", "hourly=+1", "hourly=0", "hourly=10001", "often=3"]
    {
        assert_eq!(Schedule::parse(text), None, "{text}");
    }
    assert_eq!(Schedule::parse("hourly=1,hourly=2"), None);
    assert_eq!(Schedule::parse("hourly=1,"), None);
}

#[test]
fn times_are_those_of_the_calendar() {
    let known = [
        (0, "1970-01-01T00:00Z"),
        (951_782_399, "2000-02-28T23:59Z"),
        (951_782_400, "2000-02-29T00:00Z"),
        (951_868_800, "2000-03-01T00:00Z"),
        (1_700_000_000, "2023-11-14T22:13Z"),
        (1_709_164_800, "2024-02-29T00:00Z"),
        (4_107_542_400, "2100-03-01T00:00Z"),
    ];
    for (secs, text) in known {
        assert_eq!(stamp_of(secs), text);
        assert!(calendar::is_stamp(text));
    }
    // A Sunday's last second, and Monday's first.
    assert_eq!(period_of(Kind::Weekly, 1_700_438_399) + 1, period_of(Kind::Weekly, 1_700_438_400));
    assert_eq!(period_of(Kind::Monthly, 951_868_799) + 1, period_of(Kind::Monthly, 951_868_800));
    let name = name_of(Kind::Daily, 1_700_000_000);
    assert_eq!(name, "auto-daily-2023-11-14T22:13Z");
    assert_eq!(kind_of(&name), Some(Kind::Daily));
    for foreign in ["auto-daily-monday", "daily-2023-11-14T22:13Z", "auto-2023-11-14T22:13Z"] {
        assert_eq!(kind_of(foreign), None, "{foreign}");
    }
}

#[test]
fn periods_begin_where_the_calendar_says() {
    const DAY: u64 = 86_400;
    /// A Monday, and the first day of a leap year.
    const YEAR_2024: u64 = 1_704_067_200;
    let begins = |kind, secs| period_of(kind, secs) == period_of(kind, secs - 1) + 1;
    for (kind, length) in [
        (Kind::Frequent, 15 * 60),
        (Kind::Hourly, 3600),
        (Kind::Daily, DAY),
        (Kind::Weekly, 7 * DAY),
        (Kind::Monthly, 31 * DAY),
        (Kind::Yearly, 366 * DAY),
    ] {
        assert!(begins(kind, YEAR_2024) && begins(kind, YEAR_2024 + length), "{kind:?}");
        assert_eq!(period_of(kind, YEAR_2024 + length - 1), period_of(kind, YEAR_2024), "{kind:?}");
    }
}

#[test]
fn every_day_of_two_centuries_has_its_date() {
    let (mut year, mut month, mut day) = (1970, 1, 1);
    for count in 0..73_050 {
        let secs = count * 86_400 + 13 * 3600 + 59 * 60 + 59;
        assert_eq!(stamp_of(secs), format!("{year}-{month:02}-{day:02}T13:59Z"));
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 => 28 + u64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        day += 1;
        if day > days {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
    }
}

#[test]
fn snapshots_are_taken_at_their_times_and_as_many_are_kept_as_wanted() {
    // The simulated clock begins on a Tuesday, 13 minutes after 22 o'clock.
    Runtime::simulated(1).block_on(async {
        let (pool, shelf) = pool_with("hourly=3,daily=2").await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        minutes(1).await;
        assert_eq!((taken(&pool, "hourly").len(), taken(&pool, "daily").len()), (1, 1));
        // What others have taken stays, whatever it is called.
        let mine = ["v@mine", "v@auto-hourly-mine"];
        pool.take_snapshots(&names(&mine)).await.unwrap();
        minutes(35).await;
        assert_eq!(taken(&pool, "hourly").len(), 1, "the hour is not over");
        minutes(13).await;
        let hourly = taken(&pool, "hourly");
        assert_eq!(hourly.len(), 2, "{hourly:?}");
        assert_eq!(hourly[1], "v@auto-hourly-2023-11-14T23:00Z");
        pool.hold_snapshot(&hourly[0], "keep", false).await.unwrap();
        minutes(6 * 60).await;
        let later = taken(&pool, "hourly");
        let last: Vec<&str> = later.iter().map(|name| &name[name.len() - 6..]).collect();
        // Four are more than three, because the oldest is held.
        assert_eq!(last, ["22:13Z", "03:00Z", "04:00Z", "05:00Z"], "{later:?}");
        assert_eq!(taken(&pool, "daily").len(), 2, "midnight is over");
        expect(&pool.open_snapshot(&hourly[0]).unwrap(), 0, &stamp(4096, 1)).await;
        pool.export().await.unwrap();
        drop((v, pool));
        // A pool that was away for a day takes what is due once, and not once for each hour.
        minutes(24 * 60).await;
        let paths = names(&["a", "l"]);
        let pool = Pool::import(shelf, &paths, "tank", &ImportOptions::default()).await.unwrap();
        pool.hold_snapshot(&hourly[0], "keep", true).await.unwrap();
        minutes(1).await;
        let now = taken(&pool, "hourly");
        assert_eq!(now.len(), 3, "{now:?}");
        assert!(now[2].contains("2023-11-16T05:"), "{now:?}");
        pool.set_volume("v", SNAPSHOT_EVERY, "off").await.unwrap();
        minutes(180).await;
        assert_eq!(taken(&pool, "hourly"), now);
        let left = pool.snapshots_of_spec("v@%").unwrap();
        assert!(mine.iter().all(|name| left.iter().any(|other| other == name)), "{left:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn volumes_that_are_due_together_get_snapshots_of_one_instant() {
    Runtime::simulated(2).block_on(async {
        let (pool, _) = pool_with("frequent=2").await;
        let properties = BTreeMap::from([(SNAPSHOT_EVERY.to_owned(), "frequent=2".to_owned())]);
        let w = VolumeSpec { name: "w".into(), sparse: true, properties, ..volume(8 << 20) };
        pool.create_volume(&w).await.unwrap();
        minutes(3).await;
        let all = pool.list_snapshots().await;
        let newest = |volume: &str| {
            let mut mine = all.iter().filter(|s| s.name.starts_with(volume));
            mine.next_back().map(|s| s.created_at).unwrap()
        };
        assert_eq!(newest("tank/v@"), newest("tank/w@"));
        pool.export().await.unwrap();
    });
}

// A volume with a reservation cannot have a snapshot when the pool is full. That is no reason to
// leave others without.
#[test]
fn a_volume_without_room_for_a_snapshot_is_reported_once_and_holds_up_no_other() {
    Runtime::simulated(3).block_on(async {
        let (pool, _) = pool_with("frequent=4").await;
        let size = pool.summary().available_bytes / 4096 * 4096 - (1 << 20);
        let properties = BTreeMap::from([(SNAPSHOT_EVERY.to_owned(), "frequent=4".to_owned())]);
        let thick = VolumeSpec { name: "thick".into(), properties, ..volume(size) };
        pool.create_volume(&thick).await.unwrap();
        let device = pool.open_volume("thick").unwrap();
        for at in 0..4 {
            device.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        minutes(50).await;
        assert!(taken(&pool, "frequent").len() >= 3);
        let failures = || {
            let of_it = |event: &&PoolEvent| {
                let PoolEvent::SnapshotNotTaken { volume, .. } = event else { return false };
                volume == "tank/thick"
            };
            pool.events().iter().filter(of_it).count()
        };
        assert_eq!(failures(), 1);
        // All are taken together when there is room, and the next failure is news.
        device.discard(0, 4 << 20, false).await.unwrap();
        pool.sync().await.unwrap();
        minutes(16).await;
        for at in 0..4 {
            device.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        minutes(16).await;
        assert_eq!(failures(), 2);
        pool.export().await.unwrap();
    });
}

// What was due when the task began to wait for its turn may have another name by then.
#[test]
fn a_volume_that_is_renamed_before_its_snapshot_is_taken_has_it_under_its_name() {
    Runtime::simulated(10).block_on(async {
        let (pool, _) = pool_with("frequent=2").await;
        let turn = pool.admin.lock().await;
        let renaming = rt::spawn({
            let pool = pool.clone();
            async move { pool.rename_volume("v", "w").await }
        });
        minutes(1).await;
        drop(turn);
        renaming.await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        assert_eq!(pool.snapshots_of_spec("w@%").unwrap().len(), 1);
        let is_failure = |event: &PoolEvent| matches!(event, PoolEvent::SnapshotNotTaken { .. });
        assert!(!pool.events().iter().any(is_failure), "{:?}", pool.events());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_surplus_snapshot_stays_as_long_as_a_client_has_it() {
    Runtime::simulated(7).block_on(async {
        let (pool, _) = pool_with("hourly=2").await;
        minutes(1).await;
        let first = taken(&pool, "hourly").remove(0);
        let device = pool.open_snapshot(&first).unwrap();
        minutes(4 * 60).await;
        let now = taken(&pool, "hourly");
        assert!(now.len() == 3 && now[0] == first, "{now:?}");
        drop(device);
        minutes(61).await;
        let now = taken(&pool, "hourly");
        assert!(now.len() == 2 && now[0] != first, "{now:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn surplus_snapshots_stay_as_long_as_what_changed_between_them_is_sent() {
    Runtime::simulated(8).block_on(async {
        let (pool, _) = pool_with("hourly=2").await;
        minutes(61).await;
        let sent = taken(&pool, "hourly");
        let base = sent[0].split_once('@').map(|(_, base)| base.to_owned());
        let snapshot = Some(sent[1].clone());
        let sender = pool.send(&SendOptions { snapshot, base, ..SendOptions::default() }).unwrap();
        minutes(4 * 60).await;
        let now = taken(&pool, "hourly");
        assert!(now.len() == 4 && now[..2] == sent, "{now:?}");
        sender.end().await;
        minutes(61).await;
        assert_eq!(taken(&pool, "hourly").len(), 2);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_clock_that_was_set_back_brings_no_snapshot_again() {
    Runtime::simulated(9).block_on(async {
        let (pool, _) = pool_with("hourly=2").await;
        minutes(1).await;
        assert_eq!(taken(&pool, "hourly").len(), 1);
        let now = rt::wall_clock();
        for back in [0, 3600, 30 * 24 * 3600] {
            assert_eq!(pool.due_snapshots(now - back), [], "{back} seconds");
        }
        assert_eq!(pool.due_snapshots(now + 3600).len(), 1);
        pool.export().await.unwrap();
    });
}

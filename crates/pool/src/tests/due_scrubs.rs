//! Scrubs that begin by themselves.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{ScanKind, ScanPhase};

async fn minutes(count: u64) {
    rt::sleep(Nanos::from_secs(60 * count)).await;
}

/// When the last scan began, if it was a scrub.
fn scrubbed_at(pool: &Rc<Pool>) -> Option<u64> {
    let scan = pool.status().scan.filter(|scan| scan.kind == ScanKind::Scrub)?;
    Some(scan.started_at)
}

async fn write(pool: &Rc<Pool>, salt: u64) {
    let v = pool.open_volume("v").unwrap();
    v.write(0, stamp(4096, salt), false).await.unwrap();
    pool.sync().await.unwrap();
}

#[test]
fn scrub_begins_by_itself_when_it_is_due() {
    Runtime::simulated(71).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let mut spec = spec(Layout::Mirror, &["a", "b"], &[]);
        spec.properties.insert("scrub_every".into(), "2h".into());
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        write(&pool, 1).await;
        minutes(115).await;
        assert_eq!(scrubbed_at(&pool), None, "it is not due");
        minutes(10).await;
        let first = scrubbed_at(&pool).expect("a scrub has begun");
        assert_eq!(pool.status().scan.unwrap().state, ScanPhase::Completed);
        minutes(10).await;
        assert_eq!(scrubbed_at(&pool), Some(first), "it was done");
        // Neither a resilver nor an import makes the pool forget when that was.
        pool.offline("b").await.unwrap();
        write(&pool, 2).await;
        pool.online("b").await.unwrap();
        minutes(1).await;
        assert_eq!(scrubbed_at(&pool), None, "the last scan was a resilver");
        pool.export().await.unwrap();
        drop(pool);
        minutes(50).await;
        let paths = names(&["a", "b"]);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        minutes(45).await;
        assert_eq!(scrubbed_at(&pool), None, "it is not due again");
        minutes(20).await;
        let second = scrubbed_at(&pool).expect("another scrub has begun");
        assert!((7200..7200 + 180).contains(&(second - first)), "{} s apart", second - first);
        pool.set("scrub_every", "off").await.unwrap();
        minutes(300).await;
        assert_eq!(scrubbed_at(&pool), Some(second));
        pool.export().await.unwrap();
    });
}

#[test]
fn paused_scrub_waits_for_the_operator() {
    Runtime::simulated(72).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let mut spec = spec(Layout::Mirror, &["a", "b"], &[]);
        spec.properties.insert("scrub_every".into(), "1h".into());
        spec.properties.insert("scan_rate".into(), "1M".into());
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        for at in 0..8 {
            let v = pool.open_volume("v").unwrap();
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.scrub().await.unwrap();
        pool.scrub_pause().await.unwrap();
        minutes(300).await;
        assert_eq!(pool.status().scan.unwrap().state, ScanPhase::Paused);
        pool.scrub_stop().await.unwrap();
        minutes(2).await;
        assert_ne!(pool.status().scan.unwrap().state, ScanPhase::Stopped, "it was due long ago");
        pool.export().await.unwrap();
    });
}

#[test]
fn clock_that_was_ahead_puts_no_scrub_off() {
    Runtime::simulated(7140).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let mut spec = spec(Layout::Raid0, &["a"], &[]);
        spec.properties.insert("scrub_every".into(), "1h".into());
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        const YEAR_SECS: u64 = 365 * 86_400;
        pool.config.borrow_mut().scrubbed_at = rt::wall_clock() + YEAR_SECS;
        minutes(5).await;
        assert!(scrubbed_at(&pool).is_some(), "it would be put off for a year");
        pool.export().await.unwrap();
    });
}

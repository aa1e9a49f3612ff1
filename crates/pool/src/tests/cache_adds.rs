//! Cache devices that are added together, one of which takes no header.

use forebay_device::{ErrorKind, Operation};
use forebay_rt::Runtime;
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::Layout;
use std::rc::Rc;

use super::rack::{Rack, scripted};
use super::{names, spec};
use crate::Pool;
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::Health;

const ALL: &[&str] = &["a", "k1", "k2", "k3"];

/// The device "k2" fails the write of its header.
struct NoHeader;

impl Script for NoHeader {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_header = command.operation == Operation::Write
            && (command.offset_bytes, command.len_bytes) == (0, 4096)
            && command.device == "k2";
        let decision =
            if is_header { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(async move { decision })
    }
}

fn caches(pool: &Pool) -> Vec<(String, Health)> {
    pool.status().caches.iter().map(|cache| (cache.name.clone(), cache.state)).collect()
}

#[test]
fn a_cache_device_without_a_header_is_no_part_of_the_pool_nor_are_those_after_it() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(ALL, 64 << 20);
        let host = scripted(rack.host(1), Rc::new(NoHeader));
        let pool = Pool::create(host, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let add = PoolSpec { caches: names(&["k1", "k2", "k3"]), ..PoolSpec::default() };
        assert!(pool.add(&add).await.is_err());
        let first = vec![("k1".to_owned(), Health::Online)];
        assert_eq!(caches(&pool), first);
        pool.export().await.unwrap();
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(ALL), "tank", &options).await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(1)).await;
        assert_eq!(caches(&pool), first);
        // Others may have them.
        let other = spec(Layout::Mirror, &["k2", "k3"], &[]);
        Pool::create(rack.host(1), "other", &other).await.unwrap().export().await.unwrap();
        pool.export().await.unwrap();
    });
}

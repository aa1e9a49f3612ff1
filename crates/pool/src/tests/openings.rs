//! Devices whose opening hangs: their file system does not answer.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, make, until_crash};
use super::names;
use super::rack::Rack;
use crate::spec::ImportOptions;
use crate::status::Health;
use crate::{Opener, Opening, Pool};

/// Opens the devices of a rack; the opening of `b` does not return while `hangs` is set.
struct Stuck {
    inner: Rc<dyn Opener>,
    hangs: Rc<Cell<bool>>,
}

impl Opener for Stuck {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            if path == "b" && self.hangs.get() {
                std::future::pending::<()>().await;
            }
            self.inner.open(path).await
        })
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}

#[test]
fn a_device_whose_opening_hangs_is_missing_until_it_answers() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &[]).await.export().await.unwrap();
    });
    Runtime::simulated(1).block_on(async move {
        let hangs = Rc::new(Cell::new(true));
        let opener = Rc::new(Stuck { inner: rack.host(1), hangs: hangs.clone() });
        let begun = rt::now();
        let found = Pool::discover(opener.clone(), &names(&ALL)).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].paths, ["a"]);
        // The limit of one opening, not of one after the other.
        assert!(rt::now().since(begun) < Nanos::from_secs(40));

        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(opener, &names(&ALL), "tank", &options).await.unwrap();
        check(&pool, 1).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        assert!(pool.online("b").await.is_err(), "it still hangs");
        hangs.set(false);
        pool.online("b").await.unwrap();
        while pool.summary().health != Health::Online {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

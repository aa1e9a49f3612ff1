//! Sides of logs that are attached, given up or let go of, and what a log's region takes.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, DeviceFuture, IoBytes, Layer, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, import, make, until_crash, write};
use super::rack::Rack;
use super::{names, spec};
use crate::spec::{ImportOptions, LogSpec, PoolSpec};
use crate::status::Health;
use crate::{ImportErrorKind, OpenWith, Pool};

fn without_log() -> ImportOptions {
    ImportOptions { accept_log_loss: true, ..Default::default() }
}

#[test]
fn an_attached_side_holds_what_is_durable_from_then_on() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.attach("l", "m", false).await.unwrap();
        write(&pool, 2).await;
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["l"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_that_an_import_went_on_without_is_not_asked_for_again() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.sync().await.unwrap();
    });
    rack.pull(&["l"]);
    let mine = rack.clone();
    until_crash(async move {
        let kind = import(&mine, 1, &ImportOptions::default()).await.err().unwrap();
        assert!(matches!(kind, ImportErrorKind::LogMissing { .. }), "{kind}");
        let pool = import(&mine, 1, &without_log()).await.unwrap();
        assert_eq!(pool.status().logs[0].state, Health::Faulted);
        write(&pool, 2).await;
    });
    Runtime::simulated(3).block_on(async move {
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_was_replaced_belongs_to_no_pool() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &["l"]).await;
        let other = spec(Layout::Raid0, &["b"], &[]);
        let error = Pool::create(rack.host(1), "other", &other).await.err().unwrap();
        assert!(error.to_string().contains("tank"), "{error}");
        pool.replace("b", Some("c"), false).await.unwrap();
        let members = || {
            let group = pool.status().groups.remove(0);
            group.children.into_iter().map(|child| child.name).collect::<Vec<String>>()
        };
        while members() != ["a", "c"] || pool.open_devices().len() != 3 {
            assert!(rt::now() < Nanos::from_secs(600), "{:?}", members());
            rt::sleep(Nanos::from_secs(1)).await;
        }
        let other = Pool::create(rack.host(1), "other", &other).await.unwrap();
        other.export().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A file: it takes space when it is written.
struct File {
    inner: MemoryDevice,
    written_bytes: Cell<u64>,
}

impl Layer for File {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }
    fn allocates_on_write(&self) -> bool {
        true
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.written_bytes.set(self.written_bytes.get() + data.len() as u64);
        self.inner.write(offset_bytes, data, fua)
    }
}

#[test]
fn a_log_in_a_file_has_its_space_before_it_is_used() {
    Runtime::simulated(5).block_on(async {
        let file = |name: &str| {
            Rc::new(File { inner: MemoryDevice::new(name, SIZE), written_bytes: Cell::new(0) })
        };
        let (data, log) = (file("a"), file("l"));
        let files = (data.clone(), log.clone());
        let opener = OpenWith::new(1, move |name| {
            let file = if name == "l" { &files.1 } else { &files.0 };
            Ok(file.clone() as Device)
        });
        let pool = Pool::create(opener, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let logs = vec![LogSpec { devices: names(&["l"]) }];
        pool.add(&PoolSpec { logs, ..PoolSpec::default() }).await.unwrap();
        let len_bytes = pool.config.borrow().logs[0].len_bytes;
        assert!(len_bytes > SIZE / 2 && log.written_bytes.get() >= len_bytes);
        pool.export().await.unwrap();
    });
}

//! Figures of devices in object stores.

use forebay_pool::status::{ObjectsStatus, PoolStatus, VdevStatus};

use super::exposition::Exposition;

/// Adds the figures of all pools.
pub fn objects<'a>(out: &mut Exposition, pools: impl Iterator<Item = &'a PoolStatus>) {
    let mut all = Vec::new();
    for pool in pools {
        pool.groups.iter().for_each(|group| stores(&pool.name, group, &mut all));
    }
    let gauge = |of: fn(&ObjectsStatus) -> u64| {
        all.iter().map(|store| (labels(store), of(store.2) as f64)).collect::<Vec<_>>()
    };
    let help = "Objects that hold blocks of a device in an object store.";
    out.gauges("forebay_objects", help, gauge(|o| o.objects));
    out.gauges("forebay_objects_stored_bytes", "Their bytes.", gauge(|o| o.stored_bytes));
    let help = "Bytes that wait in memory for their objects to be stored.";
    out.gauges("forebay_objects_waiting_bytes", help, gauge(|o| o.waiting_bytes));
    let requests = all.iter().flat_map(|store| {
        let o = store.2;
        let kinds = [("put", o.puts), ("get", o.gets), ("list", o.lists), ("delete", o.deletes)];
        kinds.map(|(kind, count)| {
            let mut labels = labels(store);
            labels.push(("kind", kind));
            (labels, count as f64)
        })
    });
    let help = "Requests to the store since the device was opened; deleted objects.";
    out.counters("forebay_objects_requests", help, requests.collect::<Vec<_>>());
    let transferred = all.iter().flat_map(|store| {
        [("put", store.2.put_bytes), ("get", store.2.got_bytes)].map(|(kind, count)| {
            let mut labels = labels(store);
            labels.push(("kind", kind));
            (labels, count as f64)
        })
    });
    let help = "Bytes to and from the store.";
    out.counters("forebay_objects_request_bytes", help, transferred.collect::<Vec<_>>());
    let help = "Requests that were made again because the store did not answer.";
    out.counters("forebay_objects_retries", help, gauge(|o| o.retries));
}

fn labels<'a>((pool, vdev, _): &Store<'a>) -> Vec<(&'a str, &'a str)> {
    vec![("pool", pool), ("device", vdev.name.as_str())]
}

type Store<'a> = (&'a str, &'a VdevStatus, &'a ObjectsStatus);

/// The devices in object stores below `vdev`.
fn stores<'a>(pool: &'a str, vdev: &'a VdevStatus, all: &mut Vec<Store<'a>>) {
    if let Some(objects) = &vdev.objects {
        all.push((pool, vdev, objects));
    }
    vdev.children.iter().for_each(|child| stores(pool, child, all));
}

//! Figures of devices in object stores.

use forebay_pool::status::{ObjectsStatus, PoolStatus, VdevStatus};

use super::exposition::Exposition;

/// Adds the figures of all pools.
pub fn objects<'a>(out: &mut Exposition, pools: impl Iterator<Item = &'a PoolStatus>) {
    let (mut all, mut reserves, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for pool in pools {
        let of_pool = || vec![("pool", pool.name.as_str())];
        let secs = pool.outage_reserve.and_then(|reserve| reserve.secs);
        reserves.extend(secs.map(|secs| (of_pool(), secs as f64)));
        costs.extend(pool.store.map(|store| (of_pool(), store.cost)));
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
    let help = "Seconds for which the store has answered nothing; 0 while it answers.";
    let silent = gauge(|o| o.silent_secs.unwrap_or(0));
    out.gauges("forebay_objects_silent_seconds", help, silent);
    let help = "Requests that fail again and again while others are answered.";
    out.gauges("forebay_objects_failing", help, gauge(|o| o.failing.len() as u64));
    let help = "Seconds for which durable writes go on without the store, at the present rate.";
    out.gauges("forebay_outage_reserve_seconds", help, reserves);
    let help = "Cost of requests and of what was read since the devices were opened.";
    let spent = costs.iter().map(|(labels, cost)| (labels.clone(), cost.requests + cost.egress));
    out.gauges("forebay_objects_cost", help, spent.collect::<Vec<_>>());
    let help = "Cost of what is stored, for a month.";
    let monthly = costs.iter().map(|(labels, cost)| (labels.clone(), cost.stored_a_month));
    out.gauges("forebay_objects_monthly_cost", help, monthly.collect::<Vec<_>>());
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

//! Summaries of pools, and pools in object stores.

use forebay_pool::status::{
    FailingRequestStatus, ObjectsStatus, OutageReserve, ReserveLimit, StoreCost, StoreSummary,
};

use super::*;

pub(super) fn summary() -> PoolSummary {
    PoolSummary {
        name: "tank".into(),
        format_version: 6,
        dedup_referenced_bytes: 36 << 30,
        dedup_stored_bytes: 3 << 30,
        compressed_referenced_bytes: 5 << 30,
        compressed_stored_bytes: 2 << 30,
        guid: 1_234_567_890_123_456_789,
        size_bytes: 12 << 30,
        alloc_bytes: 3 << 30,
        free_bytes: 9 << 30,
        available_bytes: 1 << 30,
        overdrawn_bytes: 0,
        raw_size_bytes: 18 << 30,
        raw_alloc_bytes: 9 << 29,
        raw_free_bytes: 27 << 29,
        health: Health::Online,
        store: None,
    }
}

fn store() -> StoreSummary {
    StoreSummary {
        objects: 640,
        stored_bytes: 10 << 30,
        requests: 123_456,
        retries: 17,
        cost: StoreCost { requests: 0.456_78, egress: 0.9, stored_a_month: 0.23 },
    }
}

fn in_store() -> PoolStatus {
    let mut device = vdev("s3://backups/tank?size=2T", VdevKind::Device, vec![]);
    device.objects = Some(ObjectsStatus {
        objects: 640,
        stored_bytes: 10 << 30,
        waiting_bytes: 16 << 20,
        puts: 90_000,
        put_bytes: 20 << 30,
        gets: 33_000,
        got_bytes: 10 << 30,
        lists: 456,
        deletes: 500,
        retries: 17,
        silent_secs: Some(42),
        silent_error: Some("connection refused".into()),
        failing: vec![FailingRequestStatus {
            request: "put".into(),
            object: "data/00000000000000aa-12".into(),
            failing_secs: 61,
            attempts: 12,
            error: "500 Internal Server Error".into(),
        }],
    });
    let reserve = OutageReserve {
        log_free_bytes: 3 << 30,
        log_bytes_per_sec: 4 << 20,
        memory_free_bytes: 200 << 20,
        write_bytes_per_sec: 2 << 20,
        timeout_secs: Some(3558),
        secs: Some(100),
        limit: Some(ReserveLimit::Memory),
    };
    let mut pool = healthy();
    pool.groups = vec![device];
    pool.outage_reserve = Some(reserve);
    pool.store = Some(store());
    pool
}

#[test]
fn a_pool_in_an_object_store_shows_its_requests_and_its_reserve() {
    let pool = in_store();
    golden("pool-status-objects.txt", &status_text(&open(&pool), false, true));
    let text = status_text(&open(&pool), false, false);
    assert!(!text.contains("cost by"), "only with -v: {text}");
    let silent = PoolCondition::StoreSilent {
        device: "s3://backups/tank".into(),
        secs: 42,
        error: Some("connection refused".into()),
        reserve: pool.outage_reserve,
    };
    let advice = advice("tank", &silent);
    assert_eq!(
        advice.status,
        "The object store of s3://backups/tank has not answered for 42 s: connection refused. \
         Durable writes go on for 00:01:40 at the present rate, until memory (dirty_limit) is full."
    );
    assert!(advice.action.contains("goes on without it if a mirror"), "{}", advice.action);
}

#[test]
fn pools_in_object_stores_list_what_they_cost() {
    let fields = words(&["name", "objects", "stored", "requests", "retries", "cost", "monthly"]);
    let listed = |store| {
        let summary = PoolSummary { store, ..summary() };
        let listed = Listed { summary, server_pid: None, vdevs: None };
        pool_list(&[("tank".to_owned(), Ok(listed))], &fields, SCRIPT).unwrap()
    };
    assert_eq!(listed(Some(store())), "tank\t640\t10737418240\t123456\t17\t1.3568\t0.2300\n");
    assert_eq!(listed(None), "tank\t-\t-\t-\t-\t-\t-\n");
}

//! Listings of snapshots, and numbers.

use forebay_pool::status::SnapshotStatus;

use super::*;
use crate::clock::duration;

#[test]
fn snapshots_are_listed_after_their_volume() {
    let snapshot = |name: &str, id, clones: &[&str]| SnapshotStatus {
        name: format!("tank/{name}"),
        id,
        created_at: 1_700_000_000,
        size_bytes: 8 << 30,
        used_bytes: 1 << 27,
        referenced_bytes: 1 << 30,
        clones: words(clones),
        holds: words(&["backup"]),
    };
    // "monday" was taken before "friday".
    let snapshots =
        vec![snapshot("vol0@monday", 8, &["tank/sparse"]), snapshot("vol0@friday", 9, &[])];
    let volumes = vec![volume("sparse", "always", 0), volume("vol0", "standard", 8 << 30)];
    let listed = Versions { volumes, snapshots: snapshots.clone() };
    let fields = words(&["name", "used", "referenced", "clones", "holds", "creation"]);
    assert_eq!(
        volume_list(&listed, ListedKind::All, &fields, BY_NAME, SCRIPT).unwrap(),
        "tank/sparse\t1342177280\t1073741824\t-\t-\t-\n\
         tank/vol0\t9663676416\t1073741824\t-\t-\t-\n\
         tank/vol0@monday\t134217728\t1073741824\ttank/sparse\tbackup\t1700000000\n\
         tank/vol0@friday\t134217728\t1073741824\t-\tbackup\t1700000000\n"
    );
    let listed = Versions { volumes: Vec::new(), snapshots };
    let fields = words(&["name", "compression", "snapshot_every", "refreserv", "available"]);
    let text = volume_list(&listed, ListedKind::Snapshot, &fields, BY_NAME, SCRIPT).unwrap();
    assert_eq!(text, "tank/vol0@monday\t-\t-\t-\t-\ntank/vol0@friday\t-\t-\t-\t-\n");
    let get = |wanted: &[&str]| volume_get(&listed, &words(wanted), &words(&["value"]), SCRIPT);
    let all = "8589934592\n134217728\n1073741824\n1700000000\n";
    assert!(get(&["all"]).unwrap().starts_with(&format!("{all}tank/sparse\nbackup\n")));
    assert!(get(&["used", "sync", "origin"]).unwrap().starts_with("134217728\n-\n-\n"));
    assert_eq!(get(&["frob"]).unwrap_err().code, ErrorCode::PropertyUnknown);
    let json = volume_get(&listed, &words(&["clones"]), &[], JSON).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["snapshots"]["tank/vol0@monday"]["clones"], "tank/sparse");
    golden(
        "snapshot-list.json",
        &volume_list(&listed, ListedKind::Snapshot, &[], BY_NAME, JSON).unwrap(),
    );
    let none = Versions::default();
    let text = volume_list(&none, ListedKind::Snapshot, &[], BY_NAME, PLAIN).unwrap();
    assert_eq!(text, "no snapshots available\n");
}

#[test]
fn numbers_are_short_or_exact() {
    assert_eq!((percent(1, 3, false), percent(1, 3, true)), ("33%".to_owned(), "33".to_owned()));
    assert_eq!(percent(0, 0, false), "0%");
    assert_eq!(percent(u64::MAX, u64::MAX, false), "100%");
    assert_eq!(duration(59), "00:00:59");
    assert_eq!(duration(86_400 + 61), "1 day 00:01:01");
    assert_eq!(local_time(u64::MAX), u64::MAX.to_string());
}

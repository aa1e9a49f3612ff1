//! Snapshots that a stream or a client needs, while snapshots go and others get their names.

use super::*;

async fn with_snapshots(folder: &Folder, names: &[&str]) -> Rc<PoolSet> {
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    let set = PoolSet::new(shelf(), state, None);
    ask(&set, create()).await.unwrap();
    ask(&set, create_volume()).await.unwrap();
    for name in names {
        take(&set, name).await;
    }
    set
}

async fn take(set: &PoolSet, name: &str) {
    ask(set, Action::SnapshotTake { snapshots: vec![name.to_owned()] }).await.unwrap();
}

async fn destroy(set: &PoolSet, name: &str) -> Result<(), Failure> {
    ask(set, Action::SnapshotDestroy { spec: name.to_owned(), force: false }).await
}

#[test]
fn a_stream_keeps_the_snapshot_that_it_begins_from() {
    let folder = Folder::new("base");
    Runtime::simulated(10).block_on(async move {
        let set = with_snapshots(&folder, &["v@a", "v@b", "v@c"]).await;
        let snapshot = Some("v@c".to_owned());
        let options = SendOptions { snapshot, base: Some("b".to_owned()), ..Default::default() };
        let sent = set.begin_send("tank", &options).unwrap();
        for name in ["v@b", "v@c"] {
            assert_eq!(destroy(&set, name).await.unwrap_err().code, ErrorCode::PoolBusy, "{name}");
        }
        destroy(&set, "v@a").await.unwrap();
        sent.end().await;
        destroy(&set, "v@b").await.unwrap();
        set.close().await.unwrap();
    });
}

// What has changed since the new one is not what a client that has read the old one lacks.
#[test]
fn a_client_that_has_asked_for_changes_gets_none_since_a_later_snapshot_of_that_name() {
    let folder = Folder::new("bitmap");
    Runtime::simulated(11).block_on(async move {
        let set = with_snapshots(&folder, &["v@a"]).await;
        let client = set.open("tank/v", &peer()).ok().unwrap();
        let data = IoBuf::copy_of(&[7; 4096]).freeze();
        client.device.write(0, data, false).await.unwrap();
        let changes = client.bitmaps.as_ref().expect("the volume has snapshots");
        let dirty = |changes: &Rc<dyn forebay_nbd::Bitmaps>| {
            let runs = changes.runs("a", 0, 1 << 20)?;
            Some(runs.iter().filter(|run| run.dirty).map(|run| run.len_bytes).sum::<u64>())
        };
        assert_eq!(dirty(changes), Some(4096));
        destroy(&set, "v@a").await.unwrap();
        take(&set, "v@a").await;
        assert_eq!(dirty(changes), None);
        let next = set.open("tank/v", &peer()).ok().unwrap();
        assert_eq!(dirty(next.bitmaps.as_ref().unwrap()), Some(0));
        drop((client, next));
        set.close().await.unwrap();
    });
}

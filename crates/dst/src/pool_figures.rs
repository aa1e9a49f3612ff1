//! What the product says of its space, its volumes and snapshots.
//!
//! What enters: a pool without requests. What leaves: a line for each of its parts.
//! Who calls: `pool.rs`.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::{PoolStatus, PoolSummary, SnapshotStatus, VolumeStatus};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::subject::{Figures, Refusal};

/// Pause between two looks.
const PAUSE: Nanos = Nanos::from_millis(200);
/// So many looks in a row must show the same.
const EQUAL_LOOKS: u32 = 3;
/// A pool without requests may change what it says for so many groups.
const MAX_LOOKS: u32 = 300;
/// Properties of a pool that change with its devices, or with an import after its dirty limit.
const OTHERS: [&str; 3] = ["usable", "available", "health"];

/// The figures of a pool, once groups change them no more: what was destroyed gives its blocks back
/// and packed blocks are packed anew group by group.
pub(crate) async fn settled(pool: &Rc<Pool>) -> Result<Option<Figures>, Refusal> {
    let (mut last, mut equal) = (Figures::default(), 0);
    for _ in 0..MAX_LOOKS {
        pool.sync().await?;
        let now = figures(pool).await;
        equal = if now == last { equal + 1 } else { 1 };
        if equal == EQUAL_LOOKS {
            return Ok(Some(now));
        }
        last = now;
        rt::sleep(PAUSE).await;
    }
    Ok(None)
}

async fn figures(pool: &Rc<Pool>) -> Figures {
    let (summary, status) = (pool.summary(), pool.status());
    let snapshots = pool.list_snapshots().await;
    let groups = status.groups.iter().map(|group| {
        let raw_alloc = group.space.and_then(|space| space.raw_alloc_bytes).unwrap_or_default();
        (group.name.clone(), raw_alloc)
    });
    let groups: Vec<(String, u64)> = groups.collect();
    let PoolStatus { lost_count, scrubbed_at, .. } = status;
    let mut lines = vec![of_pool(&summary)];
    lines.push(format!("{lost_count} blocks lost, scrubbed at {scrubbed_at}"));
    // The cleaner moves blocks from one group to another.
    let only = groups.first().filter(|_| groups.len() == 1);
    lines.extend(only.map(|(name, alloc)| format!("{name} has {alloc} bytes")));
    lines.extend(pool.volumes().iter().map(of_volume));
    lines.extend(snapshots.iter().map(of_snapshot));
    lines.extend(own(&pool.get(), &OTHERS));
    let mut taken = vec![
        ("allocated bytes".to_owned(), summary.alloc_bytes),
        ("bytes of shared contents".to_owned(), summary.dedup_stored_bytes),
        ("bytes of packed blocks".to_owned(), summary.compressed_stored_bytes),
        ("bytes not available".to_owned(), summary.size_bytes - summary.available_bytes),
        ("bytes of full segments".to_owned(), pool.stats().segments.held_bytes),
    ];
    taken.extend(groups.into_iter().map(|(name, alloc)| (format!("bytes of {name}"), alloc)));
    Figures { lines, taken }
}

fn of_pool(summary: &PoolSummary) -> String {
    let PoolSummary { alloc_bytes, .. } = summary;
    // A smaller dirty limit leaves more space from the next import on.
    let taken_bytes = summary.size_bytes - summary.available_bytes;
    let shared = (summary.dedup_referenced_bytes, summary.dedup_stored_bytes);
    let packed = (summary.compressed_referenced_bytes, summary.compressed_stored_bytes);
    format!(
        "pool: {alloc_bytes} bytes allocated, {taken_bytes} not available, shared {shared:?}, \
         packed {packed:?}"
    )
}

fn of_volume(volume: &VolumeStatus) -> String {
    let VolumeStatus { name, id, size_bytes, used_bytes, referenced_bytes, .. } = volume;
    let VolumeStatus { written_bytes, used_by_snapshots_bytes, reserved_bytes, .. } = volume;
    let VolumeStatus { origin, is_receiving, resume_token, sync, .. } = volume;
    let properties: Vec<String> = own(&volume.properties, &[]).collect();
    format!(
        "{name} (id {id}): {size_bytes} bytes, {used_bytes} used, {referenced_bytes} referenced, \
         {written_bytes} written, {used_by_snapshots_bytes} in snapshots, {reserved_bytes} \
         reserved, from {origin:?}, sync {sync}, \
         receiving {is_receiving} {resume_token:?}, {properties:?}"
    )
}

fn of_snapshot(snapshot: &SnapshotStatus) -> String {
    let SnapshotStatus { name, id, created_at, size_bytes, used_bytes, .. } = snapshot;
    let SnapshotStatus { referenced_bytes, clones, holds, .. } = snapshot;
    format!(
        "{name} (id {id}) of {created_at}: {size_bytes} bytes, {used_bytes} used, \
         {referenced_bytes} referenced, clones {clones:?}, holds {holds:?}"
    )
}

/// Properties but for some.
fn own<'a>(
    all: &'a BTreeMap<String, String>,
    but: &'a [&str],
) -> impl Iterator<Item = String> + use<'a> {
    let kept = all.iter().filter(|(name, _)| !but.contains(&name.as_str()));
    kept.map(|(name, value)| format!("{name}={value}"))
}

//! Leaks: what requests must have given back when no request is in flight.
//!
//! What enters: a running pool without requests. What leaves: an objection when memory or space is
//! still held.
//! Who calls: `boot.rs` and `judgement.rs`, in scenarios that ask for it.

use forebay_nbd::Server;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::boot_context::BootContext;
use crate::client::{SectorRange, trim_all};
use crate::model::{Model, Presence};
use crate::scenario::Demand;
use crate::subject::{Manage, Pool, Subject};
use crate::verdict::Kind;

/// How long a server may take to end the connections of clients that have gone.
const END_LIMIT: Nanos = Nanos::from_secs(60);

/// Checks that requests hold nothing, now that every client has gone.
pub(crate) async fn check_after_work<S: Subject>(
    context: &BootContext<S>,
    pool: &S::Pool,
    server: Option<&Server>,
) {
    context.phase.set("leaks");
    if let Some(server) = server {
        check_connections(&context.model, server).await;
    }
    check_memory(context, pool).await;
}

/// Checks that every connection ends once its client has gone.
async fn check_connections(model: &Model, server: &Server) {
    let until = rt::now() + END_LIMIT;
    while server.connections() > 0 && rt::now() < until {
        rt::sleep(Nanos::from_millis(10)).await;
    }
    let left = server.connections();
    if left > 0 {
        model.object(Kind::Leak, format!("{left} NBD connections without a client do not end"));
    }
}

/// Repacking may take a block more with a group, out of the pool's reserve, and a later group gives
/// it back.
const REPACKING_BYTES: u64 = 8 << 12;

/// Checks that volumes and snapshots were not promised more than the pool has. They could not all
/// be written then, long before one of them notices.
pub(crate) fn check_promises(model: &Model, pool: &impl Pool) {
    let overdrawn_bytes = pool.overdrawn_bytes();
    if overdrawn_bytes > REPACKING_BYTES {
        let text = format!("the pool has promised {overdrawn_bytes} bytes more than it has");
        model.object(Kind::Promise, text);
    }
}

/// Commits, and checks that no memory is held.
async fn check_memory<S: Subject>(context: &BootContext<S>, pool: &S::Pool) {
    let model = &context.model;
    if let Err(refusal) = pool.manage(&[], &Manage::Commit).await {
        return model.error_seen("commit", &refusal.message);
    }
    let Some(held) = pool.held() else { return };
    if held.dirty_bytes != 0 && context.scenario.demand == Demand::AllData {
        let text = format!("{} bytes are held after a commit without requests", held.dirty_bytes);
        model.object(Kind::Leak, text);
    }
    model.count("checks for leaks", 1);
}

/// Trims every volume, and checks that the pool has as much space as at first.
pub(crate) async fn check_space<S: Subject>(context: &BootContext<S>, pool: &S::Pool) {
    let model = &context.model;
    for volume in model.ids() {
        let is_there = model.update(volume, |v| v.presence) == Some(Presence::Present);
        let Some(device) = pool.volume(&model.name_of(volume)).filter(|_| is_there) else {
            continue;
        };
        let count = model.update(volume, |v| v.history.sectors()).unwrap_or(0);
        trim_all(&device, model, SectorRange::of(model, volume, 0, count)).await;
    }
    check_memory(context, pool).await;
    let (Some(held), Some(first)) = (pool.held(), model.available_at_first.get()) else { return };
    if held.available_bytes != first && context.scenario.demand == Demand::AllData {
        let now = held.available_bytes;
        let text = format!("{now} bytes are available with empty volumes, and {first} at first");
        model.object(Kind::Leak, text);
    }
}

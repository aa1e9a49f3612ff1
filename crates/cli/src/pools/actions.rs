//! Actions on one open pool.

use std::rc::{Rc, Weak};

use forebay_device::BlockDevice;
use forebay_pool::Pool;
use forebay_pool::status::PoolStats;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::args::ScanVerb;
use crate::control::{Action, Reply, Sample};
use crate::failure::Failure;
use crate::log;

/// How long the devices of a pool that has ended may stay open.
const CLOSE_TIMEOUT: Nanos = Nanos::from_secs(10);
const CLOSE_LOOK_INTERVAL: Nanos = Nanos::from_millis(5);

/// Answers an action that changes nothing.
pub(super) async fn look(pool: &Pool, action: &Action) -> Result<Reply, Failure> {
    Ok(match action {
        Action::Summary => Reply::Summary(pool.summary()),
        Action::Stats => Reply::Stats(Box::new(pool.stats())),
        Action::Pulse => Reply::Pulse(Box::new(pool.pulse())),
        Action::Sample => {
            let PoolStats { uptime_secs, cache, .. } = pool.stats();
            let (status, summary) = (pool.status(), pool.summary());
            Reply::Sample(Box::new(Sample { status, summary, uptime_secs, cache }))
        }
        Action::History => Reply::History(pool.history()),
        Action::Events { after } => Reply::Events(pool.events_after(*after)),
        Action::Properties => Reply::Properties(pool.get()),
        Action::Volumes => Reply::Volumes(pool.volumes()),
        Action::Snapshots => Reply::Snapshots(pool.list_snapshots().await),
        other => unreachable!("{other:?} changes something"),
    })
}

/// Adds the command to the pool's history; an empty one is not added.
pub(super) fn remember_command(pool: &Pool, typed: &str) {
    if !typed.is_empty() {
        pool.log_history(typed);
    }
}

pub(super) fn changes_devices(action: &Action) -> bool {
    matches!(
        action,
        Action::Add { .. }
            | Action::Remove { .. }
            | Action::Attach { .. }
            | Action::Detach { .. }
            | Action::Replace { .. }
    )
}

pub(super) async fn change(pool: &Rc<Pool>, action: &Action) -> Result<(), Failure> {
    match action {
        Action::Set { property, value } => pool.set(property, value).await?,
        Action::Add { spec } => pool.add(spec).await?,
        Action::Remove { device } => pool.remove(device).await?,
        Action::Attach { device, new_device, force } => {
            pool.attach(device, new_device, *force).await?;
        }
        Action::Detach { device } => pool.detach(device).await?,
        Action::Replace { device, new_device, force } => {
            pool.replace(device, new_device.as_deref(), *force).await?;
        }
        Action::Offline { device } => pool.offline(device).await?,
        Action::Online { device } => pool.online(device).await?,
        Action::Clear { device } => pool.clear(device.as_deref()).await?,
        Action::Scrub { verb: ScanVerb::Start } => pool.scrub().await?,
        Action::Scrub { verb: ScanVerb::Pause } => pool.scrub_pause().await?,
        Action::Scrub { verb: ScanVerb::Stop } => pool.scrub_stop().await?,
        Action::Resilver => pool.resilver(),
        Action::Sync => pool.sync().await?,
        Action::VolumeCreate { spec } => pool.create_volume(spec).await?,
        Action::VolumeResize { volume, size_bytes, force } => {
            pool.resize_volume(volume, *size_bytes, *force).await?;
        }
        Action::VolumeSet { volume, property, value } => {
            pool.set_volume(volume, property, value).await?;
        }
        Action::SnapshotTake { snapshots } => pool.take_snapshots(snapshots).await?,
        Action::SnapshotHold { snapshot, tag, release } => {
            pool.hold_snapshot(snapshot, tag, *release).await?;
        }
        Action::ReceiveAbandon { volume } => pool.abandon_receive(volume).await?,
        Action::VolumeClone { snapshot, spec } => pool.clone_snapshot(snapshot, spec).await?,
        Action::Upgrade => {
            pool.upgrade().await?;
        }
        other => unreachable!("{other:?} is performed by the set itself"),
    }
    Ok(())
}

/// Whether an action takes volumes or snapshots from their clients.
pub(super) fn takes_away(action: &Action) -> bool {
    matches!(
        action,
        Action::VolumeDestroy { .. }
            | Action::VolumeRename { .. }
            | Action::VolumePromote { .. }
            | Action::SnapshotDestroy { .. }
            | Action::SnapshotRename { .. }
            | Action::VolumeRollback { .. }
    )
}

/// The volumes and snapshots (`POOL/VOL[@SNAP]`) that an action takes from their clients, and
/// whether it does so while there are some.
pub(super) fn taken_away(pool: &Pool, action: &Action) -> Result<(Vec<String>, bool), Failure> {
    let (names, force) = match action {
        Action::VolumeDestroy { volume, force, recursive } => {
            let mut names = vec![volume.clone()];
            if *recursive {
                names.extend(pool.snapshots_of_spec(&format!("{volume}@%"))?);
            }
            (names, *force)
        }
        Action::SnapshotDestroy { spec, force } => (pool.snapshots_of_spec(spec)?, *force),
        Action::SnapshotRename { snapshot, force, .. } => (vec![snapshot.clone()], *force),
        Action::VolumeRollback { snapshot, force, recursive } => {
            let volume = snapshot.split('@').next().unwrap_or(snapshot);
            let mut names = vec![volume.to_owned()];
            if *recursive {
                // The snapshot itself stays.
                names.extend(pool.snapshots_of_spec(&format!("{snapshot}%"))?.into_iter().skip(1));
            }
            (names, *force)
        }
        Action::VolumePromote { volume, force } => (pool.snapshots_to_promote(volume)?, *force),
        Action::VolumeRename { volume, force, .. } => {
            let mut names = vec![volume.clone()];
            names.extend(pool.snapshots_of_spec(&format!("{volume}@%"))?);
            (names, *force)
        }
        other => unreachable!("{other:?} takes nothing from clients"),
    };
    Ok((names.iter().map(|name| format!("{}/{name}", pool.name())).collect(), force))
}

/// Fails if the pool would refuse such an action, before a client is cut off for it.
pub(super) async fn check_take_away(pool: &Pool, action: &Action) -> Result<(), Failure> {
    pool.check_not_suspended()?;
    match action {
        Action::VolumeDestroy { volume, recursive, .. } => {
            pool.check_destroy_volume(volume, *recursive)?;
        }
        Action::SnapshotDestroy { spec, .. } => {
            pool.check_destroy_snapshots(&pool.snapshots_of_spec(spec)?)?;
        }
        Action::VolumeRollback { snapshot, recursive, .. } => {
            pool.check_roll_back(snapshot, *recursive).await?;
        }
        Action::SnapshotRename { snapshot, new_name, .. } => {
            pool.check_rename_snapshot(snapshot, new_name)?;
        }
        Action::VolumePromote { volume, .. } => pool.check_promote(volume)?,
        Action::VolumeRename { volume, new_name, .. } => {
            pool.check_rename_volume(volume, new_name)?;
        }
        other => unreachable!("{other:?} takes nothing from clients"),
    }
    Ok(())
}

/// Performs such an action, when no client is left.
pub(super) async fn take_away(pool: &Pool, action: &Action) -> Result<(), Failure> {
    match action {
        Action::VolumeDestroy { volume, recursive, .. } => {
            pool.destroy_volume(volume, *recursive).await?;
        }
        Action::SnapshotDestroy { spec, .. } => {
            pool.destroy_snapshots(&pool.snapshots_of_spec(spec)?).await?;
        }
        Action::VolumeRollback { snapshot, recursive, .. } => {
            pool.roll_back_volume(snapshot, *recursive).await?;
        }
        Action::SnapshotRename { snapshot, new_name, .. } => {
            pool.rename_snapshot(snapshot, new_name).await?;
        }
        Action::VolumePromote { volume, .. } => pool.promote_volume(volume).await?,
        Action::VolumeRename { volume, new_name, .. } => {
            pool.rename_volume(volume, new_name).await?;
        }
        other => unreachable!("{other:?} takes nothing from clients"),
    }
    Ok(())
}

/// Waits until the devices of pool `name`, which has ended, are closed. Requests under way, and
/// those that only look at the pool, hold it a moment longer.
pub(super) async fn until_closed(name: &str, devices: &[Weak<dyn BlockDevice>]) {
    let closed = async {
        while devices.iter().any(|device| device.strong_count() > 0) {
            rt::sleep(CLOSE_LOOK_INTERVAL).await;
        }
    };
    if rt::timeout(CLOSE_TIMEOUT, Box::pin(closed)).await.is_err() {
        log::warning(&format!("devices of '{name}' are still open: a request holds them"));
    }
}

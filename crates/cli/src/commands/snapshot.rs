//! `forebay volume …`: the verbs of snapshots.

use forebay_pool::spec::CloneSpec;
use forebay_pool::status::SnapshotStatus;

use super::outcome::Outcome;
use super::requests::{ask_all, from_each, good, pools_of, property_map, reply_as};
use crate::args::{VolumeCommand, VolumeName};
use crate::attachments::{devices_of, refuse_attached, take_away_all};
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::pool_access::PoolAccess;

/// Runs a verb of snapshots.
pub async fn snapshot(command: VolumeCommand, access: &PoolAccess) -> Result<Outcome, Failure> {
    match command {
        VolumeCommand::Snapshot { snapshots } => take(access, snapshots).await,
        VolumeCommand::Rollback { recursive, force, snapshot } => {
            let VolumeName { pool, volume: snapshot } = snapshot;
            let volume = snapshot.split('@').next().unwrap_or_default();
            let devices = devices_of(access, &format!("{pool}/{volume}")).await?;
            if !force {
                refuse_attached(&devices)?;
            }
            take_away_all(devices).await;
            ask_all(access, &pool, [Action::VolumeRollback { snapshot, recursive, force }]).await
        }
        VolumeCommand::Clone { options, snapshot, volume } => {
            same_pool(&snapshot, &volume)?;
            let spec = CloneSpec { name: volume.volume, properties: property_map(options)? };
            let action = Action::VolumeClone { snapshot: snapshot.volume, spec };
            ask_all(access, &volume.pool, [action]).await
        }
        VolumeCommand::Promote { force, volume } => {
            let action = Action::VolumePromote { volume: volume.volume, force };
            ask_all(access, &volume.pool, [action]).await
        }
        VolumeCommand::Rename { force, name, new_name } => {
            same_pool(&name, &new_name)?;
            let VolumeName { pool, volume: name } = name;
            let action = renaming(name.clone(), new_name.volume, force)?;
            let devices = devices_of(access, &format!("{pool}/{name}")).await?;
            if !force {
                refuse_attached(&devices)?;
            }
            take_away_all(devices).await;
            ask_all(access, &pool, [action]).await
        }
        VolumeCommand::Hold { tag, snapshots } => hold(access, &tag, snapshots, false).await,
        VolumeCommand::Release { tag, snapshots } => hold(access, &tag, snapshots, true).await,
        other => unreachable!("{other:?} is about volumes"),
    }
}

/// What gives volume `VOL` or snapshot `VOL@SNAP` a new name of the same kind.
fn renaming(name: String, new_name: String, force: bool) -> Result<Action, Failure> {
    let wrong = |message: &str| Err(Failure::usage(message));
    match (name.split_once('@'), new_name.split_once('@')) {
        (None, None) => Ok(Action::VolumeRename { volume: name, new_name, force }),
        (Some((volume, _)), Some((other, new))) if volume == other => {
            let new_name = new.to_owned();
            Ok(Action::SnapshotRename { snapshot: name, new_name, force })
        }
        (Some(_), Some(_)) => wrong("a snapshot stays with its volume: both names begin alike"),
        _ => wrong("a volume's new name has no '@', and a snapshot's is POOL/VOL@NEW"),
    }
}

/// Takes snapshots: those of a pool at one instant.
async fn take(access: &PoolAccess, wanted: Vec<VolumeName>) -> Result<Outcome, Failure> {
    let mut pools: Vec<(String, Vec<String>)> = Vec::new();
    for VolumeName { pool, volume } in wanted {
        match pools.iter_mut().find(|(name, _)| *name == pool) {
            Some((_, snapshots)) => snapshots.push(volume),
            None => pools.push((pool, vec![volume])),
        }
    }
    for (pool, snapshots) in pools {
        ask_all(access, &pool, [Action::SnapshotTake { snapshots }]).await?;
    }
    Ok(Outcome::done())
}

async fn hold(
    access: &PoolAccess,
    tag: &str,
    snapshots: Vec<VolumeName>,
    release: bool,
) -> Result<Outcome, Failure> {
    for VolumeName { pool, volume: snapshot } in snapshots {
        let action = Action::SnapshotHold { snapshot, tag: tag.to_owned(), release };
        ask_all(access, &pool, [action]).await?;
    }
    Ok(Outcome::done())
}

fn same_pool(one: &VolumeName, other: &VolumeName) -> Result<(), Failure> {
    if one.pool == other.pool {
        return Ok(());
    }
    Err(Failure::usage(format!("'{}' and '{}' are different pools", one.pool, other.pool)))
}

/// The snapshots of `names` (pools, `POOL/VOL` or `POOL/VOL@SNAP`), or all; and whether every pool
/// could be asked.
pub async fn snapshots(
    access: &PoolAccess,
    names: &[String],
) -> Result<(Vec<SnapshotStatus>, bool), Failure> {
    let each = from_each(access, &pools_of(names), async |handle| {
        reply_as!(handle.ask(Action::Snapshots).await, Reply::Snapshots)
    })
    .await?;
    let (found, complete) = good(each);
    let mut found: Vec<SnapshotStatus> = found.into_iter().flatten().collect();
    if let Some(missing) =
        names.iter().find(|n| n.contains('@') && !found.iter().any(|s| s.name == **n))
    {
        let message = format!("no snapshot named '{missing}'");
        return Err(Failure::new(ErrorCode::VolumeNotFound, message)
            .with_hint("'forebay volume list -t snapshot' shows the snapshots"));
    }
    let wanted = |snapshot: &SnapshotStatus| {
        let volume = snapshot.name.split('@').next().unwrap_or_default();
        let pool = volume.split('/').next().unwrap_or_default();
        names.iter().any(|name| *name == snapshot.name || name == volume || name == pool)
    };
    found.retain(|snapshot| names.is_empty() || wanted(snapshot));
    Ok((found, complete))
}

//! `forebay volume …`: one function for each verb.

use forebay_attach::Volume;
use forebay_pool::spec::VolumeSpec;
use forebay_pool::status::VolumeStatus;
use forebay_pool::{MAX_VOLUME_BYTES, ReceiveOptions};
use forebay_units::parse_bytes;

use super::outcome::Outcome;
use super::requests::{ask_all, from_each, good, names_of, pools_of, property_map, reply_as};
use super::snapshot::{snapshot, snapshots};
use super::transfer::{Receiving, Sending, receive, send};
use crate::args::{ListedKind, Listing, NameList, VolumeCommand, VolumeName};
use crate::attachments::{attached, devices_of, refuse_attached, take_away_all};
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::pool_access::PoolAccess;
use crate::render;

/// Sizes of volumes are multiples of this.
const SIZE_UNIT_BYTES: u64 = forebay_units::BLOCK_BYTES;

/// Runs the command.
pub async fn volume(command: VolumeCommand, access: &PoolAccess) -> Result<Outcome, Failure> {
    match command {
        VolumeCommand::Create { size_bytes, sparse, options, volume } => {
            let size_bytes = checked_size(size_bytes)?;
            let properties = property_map(options)?;
            let spec = VolumeSpec { name: volume.volume, size_bytes, sparse, properties };
            ask_all(access, &volume.pool, [Action::VolumeCreate { spec }]).await
        }
        VolumeCommand::List { kind, listing, fields, ascending, descending, names } => {
            let is_descending = !descending.is_empty();
            let sort_by = if is_descending { &descending } else { &ascending };
            let order = render::Order { fields: sort_by, is_descending };
            list(access, kind, &names, &fields, order, listing).await
        }
        VolumeCommand::Destroy { force, recursive, volume } if volume.volume.contains('@') => {
            if recursive {
                return Err(Failure::usage("-r is for volumes: it destroys their snapshots"));
            }
            let action = Action::SnapshotDestroy { spec: volume.volume, force };
            ask_all(access, &volume.pool, [action]).await
        }
        VolumeCommand::Destroy { force, recursive, volume } => {
            destroy(access, volume, force, recursive).await
        }
        VolumeCommand::Snapshot { .. }
        | VolumeCommand::Rollback { .. }
        | VolumeCommand::Clone { .. }
        | VolumeCommand::Promote { .. }
        | VolumeCommand::Rename { .. }
        | VolumeCommand::Hold { .. }
        | VolumeCommand::Release { .. } => snapshot(command, access).await,
        VolumeCommand::Send { base, as_stored, dry_run, verbose, token, snapshot } => {
            send(Sending { base, as_stored, dry_run, verbose, token, snapshot }, access).await
        }
        VolumeCommand::Receive { roll_back, resumable, verbose, abandon, volume } => {
            let options = ReceiveOptions { roll_back, is_resumable: resumable };
            receive(Receiving { options, verbose, abandon, volume }, access).await
        }
        VolumeCommand::Resize { size_bytes, force, volume } => {
            let size_bytes = checked_size(size_bytes)?;
            let action = Action::VolumeResize { volume: volume.volume, size_bytes, force };
            ask_all(access, &volume.pool, [action]).await
        }
        VolumeCommand::Get { listing, fields, properties, names } => {
            render::get_columns(names_of(&fields))?;
            let (found, complete) = named_versions(access, &names).await?;
            if found.volumes.is_empty() && found.snapshots.is_empty() && !complete {
                return Ok(Outcome { text: String::new(), complete });
            }
            let text = render::volume_get(&found, &properties.0, names_of(&fields), listing)?;
            Ok(Outcome { text, complete })
        }
        VolumeCommand::Set { property: (property, value), volumes } => {
            set(access, &volumes, &property, &value).await
        }
    }
}

async fn list(
    access: &PoolAccess,
    kind: ListedKind,
    names: &[String],
    fields: &Option<NameList>,
    order: render::Order<'_>,
    listing: Listing,
) -> Result<Outcome, Failure> {
    render::check_volume_fields(names_of(fields))?;
    render::check_volume_fields(order.fields)?;
    if kind == ListedKind::Volume {
        let (listed, complete) = named_versions(access, names).await?;
        // A snapshot that is named is listed among volumes too, as in zfs.
        let kind = match (listed.volumes.is_empty(), listed.snapshots.is_empty()) {
            (_, true) => ListedKind::Volume,
            (true, false) => ListedKind::Snapshot,
            (false, false) => ListedKind::All,
        };
        return listed_text(&listed, kind, fields, order, listing, complete);
    }
    // Refused when there is no volume of that name.
    let of = |name: &String| name.split('@').next().unwrap_or(name).to_owned();
    let (found, complete) = volumes(access, &names.iter().map(of).collect::<Vec<_>>()).await?;
    let with_volume = |name: &String| {
        names.is_empty()
            || names
                .iter()
                .any(|n| !n.contains('@') && (n == name || name.starts_with(&format!("{n}/"))))
    };
    let volumes: Vec<VolumeStatus> = match kind {
        ListedKind::Snapshot => Vec::new(),
        _ => found.into_iter().filter(|volume| with_volume(&volume.name)).collect(),
    };
    let (snapshots, asked) = snapshots(access, names).await?;
    let volumes = with_devices(access, volumes).await?;
    let listed = render::Versions { volumes, snapshots };
    listed_text(&listed, kind, fields, order, listing, complete && asked)
}

fn listed_text(
    listed: &render::Versions,
    kind: ListedKind,
    fields: &Option<NameList>,
    order: render::Order<'_>,
    listing: Listing,
    complete: bool,
) -> Result<Outcome, Failure> {
    // "No volumes" is only said when every pool could be asked.
    if !complete && !listing.json && listed.volumes.is_empty() && listed.snapshots.is_empty() {
        return Ok(Outcome { text: String::new(), complete });
    }
    let text = render::volume_list(listed, kind, names_of(fields), order, listing)?;
    Ok(Outcome { text, complete })
}

/// The volumes of `names` (pools, `POOL/VOL` or `POOL/VOL@SNAP`), or all, and the snapshots that
/// are named; and whether every pool could be asked.
async fn named_versions(
    access: &PoolAccess,
    names: &[String],
) -> Result<(render::Versions, bool), Failure> {
    let (named, others): (Vec<String>, Vec<String>) =
        names.iter().cloned().partition(|name| name.contains('@'));
    let (found, complete) = match names.is_empty() || !others.is_empty() {
        true => volumes(access, &others).await?,
        false => (Vec::new(), true),
    };
    let (snapshots, asked) = match named.is_empty() {
        true => (Vec::new(), true),
        false => snapshots(access, &named).await?,
    };
    let volumes = with_devices(access, found).await?;
    Ok((render::Versions { volumes, snapshots }, complete && asked))
}

/// The volumes with the devices that they are attached as.
async fn with_devices(
    access: &PoolAccess,
    volumes: Vec<VolumeStatus>,
) -> Result<Vec<render::ListedVolume>, Failure> {
    let devices = attached().await;
    let known = access.state().known_pools()?;
    let listed = volumes.into_iter().map(|status| {
        let pool = status.name.split('/').next().unwrap_or_default();
        let guid = known.iter().find(|known| known.name == pool).map(|known| known.guid);
        let device = devices.iter().find(|device| {
            let Volume { pool_guid, volume_id } = device.identity.volume;
            Some(pool_guid) == guid && volume_id == status.id
        });
        let attached = device.map(|device| device.path.display().to_string());
        render::ListedVolume { status, attached }
    });
    Ok(listed.collect())
}

/// Destroys a volume. With force, the devices that it is attached as go with it.
async fn destroy(
    access: &PoolAccess,
    VolumeName { pool, volume }: VolumeName,
    force: bool,
    recursive: bool,
) -> Result<Outcome, Failure> {
    let name = format!("{pool}/{volume}");
    let devices = devices_of(access, &name).await?;
    if !force {
        refuse_attached(&devices)?;
    }
    let outcome =
        ask_all(access, &pool, [Action::VolumeDestroy { volume, force, recursive }]).await?;
    take_away_all(devices).await;
    Ok(outcome)
}

async fn set(
    access: &PoolAccess,
    chosen: &[VolumeName],
    property: &str,
    value: &str,
) -> Result<Outcome, Failure> {
    let is_read_only = render::is_computed_of_volume(property);
    if chosen.len() > 1 || is_read_only {
        // Fails before anything is changed when one of the volumes does not exist.
        let name = |v: &VolumeName| format!("{}/{}", v.pool, v.volume);
        let names: Vec<String> = chosen.iter().map(name).collect();
        volumes(access, &names).await?;
    }
    if is_read_only {
        let message = format!("'{property}' is read-only");
        return Err(Failure::new(ErrorCode::PropertyReadOnly, message));
    }
    for VolumeName { pool, volume } in chosen {
        let volume = volume.clone();
        // As in zfs, the size is a property too.
        let action = if property == "volsize" {
            let size_bytes = checked_size(parse_bytes(value).map_err(Failure::usage)?)?;
            Action::VolumeResize { volume, size_bytes, force: false }
        } else {
            let (property, value) = (property.to_owned(), value.to_owned());
            Action::VolumeSet { volume, property, value }
        };
        ask_all(access, pool, [action]).await?;
    }
    Ok(Outcome::done())
}

fn checked_size(size_bytes: u64) -> Result<u64, Failure> {
    let near = size_bytes.max(1).checked_next_multiple_of(SIZE_UNIT_BYTES);
    // Of what no volume can have, the pool says so.
    let near = near.filter(|near| *near != size_bytes && *near <= MAX_VOLUME_BYTES);
    if let Some(near) = near {
        let s = if size_bytes == 1 { "" } else { "s" };
        let message = format!("a volume cannot have {size_bytes} byte{s}");
        return Err(Failure::new(ErrorCode::VolumeSize, message)
            .with_hint(format!("use a multiple of {SIZE_UNIT_BYTES}, such as {near}")));
    }
    Ok(size_bytes)
}

/// The volumes of `names` (pools, or volumes as `POOL/VOL`), or all when none is named; and whether
/// every pool could be asked.
async fn volumes(
    access: &PoolAccess,
    names: &[String],
) -> Result<(Vec<VolumeStatus>, bool), Failure> {
    let each = from_each(access, &pools_of(names), async |handle| {
        reply_as!(handle.ask(Action::Volumes).await, Reply::Volumes)
    })
    .await?;
    let (volumes, complete) = good(each);
    let mut volumes: Vec<VolumeStatus> = volumes.into_iter().flatten().collect();
    if let Some(missing) =
        names.iter().find(|n| n.contains('/') && !volumes.iter().any(|v| v.name == **n))
    {
        return Err(Failure::new(
            ErrorCode::VolumeNotFound,
            format!("no volume named '{missing}'"),
        )
        .with_hint("'forebay volume list' shows the volumes"));
    }
    let wanted = |volume: &VolumeStatus| {
        let pool = volume.name.split('/').next().unwrap_or_default();
        names.iter().any(|name| *name == volume.name || name == pool)
    };
    volumes.retain(|volume| names.is_empty() || wanted(volume));
    Ok((volumes, complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_that_is_refused_is_answered_with_one_that_is_not() {
        for (size_bytes, near) in
            [(0_u64, 4096_u64), (1, 4096), (4097, 8192), ((1 << 50) - 1, 1 << 50)]
        {
            let hint = checked_size(size_bytes).unwrap_err().hint;
            assert_eq!(hint, format!("use a multiple of 4096, such as {near}"));
        }
        // The pool refuses these.
        for size_bytes in [4096, 1 << 50, (1_u64 << 50) + 1, u64::MAX] {
            assert_eq!(checked_size(size_bytes).unwrap(), size_bytes);
        }
    }
}

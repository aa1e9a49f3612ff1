//! Divergence (split-brain): tells devices that were away from halves that were written apart.
//!
//! Every root carries the nonce of its owner, and the configuration lists the owners. A device that
//! was away stopped within an owner that the others know. Any other root was written apart, and the
//! operator chooses. The crate's README says how, and why the higher number must not win.

use forebay_format::config::{Lineage, MemberUse, OwnerConfig, PoolConfig};
use forebay_format::superblock::Superblock;
use forebay_units::CommitId;

use crate::import::error::ImportErrorKind;
use crate::import::found::Found;
use crate::labels::Label;
use crate::resume::Continued;
use crate::spec::Told;

/// Most owners that are remembered. A device that was away for longer is taken for an old copy.
const OWNERS: usize = 256;
/// Most owners that are remembered as left behind by choice.
const APART: usize = 64;

/// The devices of a pool that share one history.
pub(crate) struct History<'a> {
    /// The devices that count.
    pub devices: Vec<&'a Found>,
    /// Paths of those that were written apart from them.
    pub apart: Vec<String>,
    /// The highest root on any device, left behind or not. The next root must be above it.
    pub highest: CommitId,
    lineage: Lineage,
}

/// The devices of a pool that share one history. Refuses several histories, unless `keep` (a path)
/// names a device of the one that counts.
pub(crate) fn one_history<'a>(
    found: Vec<&'a Found>,
    keep: Option<&str>,
) -> Result<History<'a>, ImportErrorKind> {
    let lasts = |of: &[&'a Found]| -> Vec<Last<'a>> { of.iter().filter_map(|f| last(f)).collect() };
    let all = lasts(&found);
    let highest = all.iter().map(|l| l.root.commit).max().unwrap_or(CommitId(0));
    let left = |l: &Last| all.iter().any(|o| o.config.lineage.apart.contains(&l.root.nonce));
    let mut candidates: Vec<&Last> = all.iter().filter(|l| !left(l)).collect();
    if candidates.is_empty() || keep.is_some() {
        candidates = all.iter().collect();
    }
    let mut head = newest(&candidates);
    if let Some(path) = keep {
        let kept = candidates.iter().find(|l| l.found.path == path);
        let kept = kept.ok_or_else(|| ImportErrorKind::NotKept { device: path.to_owned() })?;
        let same: Vec<&Last> =
            candidates.iter().copied().filter(|l| !l.apart_from(kept, &all)).collect();
        head = newest(&same);
    }
    // Without a readable root the import itself reports the error.
    let Some(head) = head else {
        let (apart, lineage) = (Vec::new(), Lineage::default());
        return Ok(History { devices: found, apart, highest, lineage });
    };
    let apart: Vec<&Last> =
        candidates.iter().copied().filter(|l| l.apart_from(head, &all)).collect();
    if !apart.is_empty() && keep.is_none() {
        return Err(refusal(head, &apart));
    }
    let mut lineage = head.config.lineage.clone();
    for nonce in apart.iter().map(|l| l.root.nonce) {
        if !lineage.apart.contains(&nonce) {
            lineage.apart.push(nonce);
        }
    }
    // The kept side may have been left behind itself once.
    lineage.apart.retain(|nonce| *nonce != head.root.nonce);
    let extra = lineage.apart.len().saturating_sub(APART);
    lineage.apart.drain(..extra);
    let counts = |f: &&Found| match last(f) {
        Some(last) => !lineage.apart.contains(&last.root.nonce),
        None => !is_log_apart(f, head, &lineage.apart, keep.is_some()),
    };
    let (devices, others): (Vec<&Found>, Vec<&Found>) = found.into_iter().partition(counts);
    let apart = others.into_iter().map(|f| f.path.clone()).collect();
    Ok(History { devices, apart, highest, lineage })
}

fn newest<'l, 'a>(of: &[&'l Last<'a>]) -> Option<&'l Last<'a>> {
    of.iter().copied().max_by_key(|l| l.root.commit)
}

/// The owners of the pool that a log device knows of, which has no roots. The last one wrote it.
fn owners_of(log: &Found) -> &[OwnerConfig] {
    log.label.configs.first().map_or(&[], |(_, config)| &config.lineage.owners)
}

/// Whether the last owner that wrote a log device is in the line to a configuration.
pub(crate) fn knows_writer(config: &PoolConfig, log: &Found) -> bool {
    owners_of(log).last().is_none_or(|last| is_in_line(config, last))
}

fn is_in_line(config: &PoolConfig, owner: &OwnerConfig) -> bool {
    config.lineage.owners.iter().any(|other| other.nonce == owner.nonce)
}

/// Whether a log device is of another history than `head`: owners wrote it that are in `apart`, or,
/// when a half is being kept, it knows of owners that the line to `head` does not have. Its frames
/// do not count then.
fn is_log_apart(log: &Found, head: &Last, apart: &[u64], keeps: bool) -> bool {
    let owners = owners_of(log);
    let left = |owner: &OwnerConfig| apart.contains(&owner.nonce);
    let left_line = |owner: &OwnerConfig| left(owner) && !is_in_line(head.config, owner);
    if owners.last().is_some_and(left) || owners.iter().any(left_line) {
        return true;
    }
    // An import from this very root that was cut short has told the log of its owner.
    let goes_on = owners.iter().any(|owner| owner.nonce == head.root.nonce);
    keeps && !knows_writer(head.config, log) && !goes_on
}

/// Whether a device that returns to a running pool (with this configuration, and roots of this
/// nonce) has diverged from it.
pub(crate) fn went_on_apart(label: &Label, config: &PoolConfig, nonce: u64) -> bool {
    let Some(root) = label.roots.first() else { return false };
    let left = config.lineage.apart.contains(&root.nonce);
    let own = label.config(root.config_generation, root.config_sum);
    left || is_apart(label, root, own, config, nonce, &[])
}

impl History<'_> {
    /// Records the owner `nonce` as the next one. With `continued` it also follows whatever the
    /// suspended pool and earlier attempts may have written to devices that are missing now.
    pub fn goes_on(self, config: &mut PoolConfig, nonce: u64, continued: Option<&Continued<'_>>) {
        config.lineage = self.lineage;
        match continued {
            Some(continued) => continued.begin(config, nonce, self.highest),
            None => begin(config, nonce, self.highest),
        }
    }
}

/// A new owner of a pool that has roots up to `after`.
pub(crate) fn begin(config: &mut PoolConfig, nonce: u64, after: CommitId) {
    let owners = &mut config.lineage.owners;
    owners.push(OwnerConfig { nonce, after: after.0 });
    let extra = owners.len().saturating_sub(OWNERS);
    owners.drain(..extra);
}

/// What the list of known pools is told of this configuration.
pub(crate) fn told(config: &PoolConfig) -> Told {
    let owner = config.lineage.owners.last().map_or(0, |owner| owner.nonce);
    Told { generation: config.generation, owner }
}

/// The newest root of a device, and the configuration that it names.
struct Last<'a> {
    found: &'a Found,
    root: &'a Superblock,
    config: &'a PoolConfig,
}

fn last(found: &Found) -> Option<Last<'_>> {
    let root = found.label.roots.first()?;
    let config = found.label.config(root.config_generation, root.config_sum)?;
    Some(Last { found, root, config })
}

impl Last<'_> {
    fn apart_from(&self, other: &Last, all: &[Last]) -> bool {
        let reaches = |from: &Last, to: &Last| {
            let with: Vec<u32> = all
                .iter()
                .filter(|l| l.root.nonce == to.root.nonce)
                .map(|l| l.found.label.configs[0].0.device)
                .collect();
            let label = &from.found.label;
            !is_apart(label, from.root, Some(from.config), to.config, to.root.nonce, &with)
        };
        !reaches(self, other) && !reaches(other, self)
    }
}

/// Whether the newest root of a device is not on the way to that of `nonce`, whose configuration is
/// `config`, on the devices `with`.
fn is_apart(
    label: &Label,
    root: &Superblock,
    own: Option<&PoolConfig>,
    config: &PoolConfig,
    nonce: u64,
    with: &[u32],
) -> bool {
    let owners = &config.lineage.owners;
    let oldest = owners.first().map_or(u64::MAX, |o| o.after);
    if root.nonce == nonce || root.commit.0 <= oldest {
        return false;
    }
    let at = owners.iter().rposition(|o| o.nonce == root.nonce);
    let next = at.and_then(|at| owners.get(at + 1));
    let after = match (at, next) {
        // The last owner that both know: the others stand at its end, or will.
        (Some(_), None) => return false,
        (Some(_), Some(next)) => next.after,
        (None, _) => 0,
    };
    let beyond = |r: &&Superblock| r.nonce == root.nonce && r.commit.0 > after;
    match label.roots.iter().filter(beyond).count() {
        0 => false,
        // One root may have been in flight when its owner ended, and does not count, unless it was
        // written without those others.
        1 => {
            let left = |id: &u32| {
                let member = own.and_then(|c| c.data_members().find(|m| m.device == *id));
                own.is_some()
                    && member
                        .is_none_or(|m| m.state != MemberUse::Online || m.stale_since.is_some())
            };
            !with.is_empty() && with.iter().all(left)
        }
        _ => true,
    }
}

fn refusal(head: &Last, apart: &[&Last]) -> ImportErrorKind {
    ImportErrorKind::Diverged {
        newest: head.found.path.clone(),
        newest_root: head.root.commit,
        others: apart.iter().map(|l| l.found.path.clone()).collect(),
        others_root: apart[0].root.commit,
    }
}

#[cfg(test)]
mod tests;

//! Roots that were written apart, by the list of owners alone.

use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::import::device_match::look_at;
use crate::opener::FencedOpener;
use crate::tests::imports::{ALL, SIZE, make};
use crate::tests::names;
use crate::tests::rack::Rack;

/// The devices of a mirror with a log device, after a crash.
async fn crashed() -> Vec<Found> {
    let rack = Rack::new(&ALL, SIZE);
    let pool = make(&rack, Layout::Mirror, &["a", "b", "c"], &["l"]).await;
    pool.sync().await.unwrap();
    look_at(&FencedOpener::new(rack.host(1)), &names(&ALL)).await.found
}

/// The first owner begins after root 10, the second after 20, and so on.
const OWNERS_FROM: [(u64, u64); 3] = [(1, 10), (2, 20), (3, 30)];

/// As many roots of one owner, newest first.
fn roots(of: &Superblock, nonce: u64, commits: &[u64]) -> Vec<Superblock> {
    let root = |commit: &u64| Superblock { nonce, commit: CommitId(*commit), ..of.clone() };
    commits.iter().map(root).collect()
}

#[test]
fn a_device_is_apart_with_two_roots_past_the_end_of_its_owner() {
    Runtime::simulated(1).block_on(async {
        let found = crashed().await;
        let mut config = found[0].label.configs[0].1.clone();
        let owner = |(nonce, after): (u64, u64)| OwnerConfig { nonce, after };
        config.lineage.owners = OWNERS_FROM.map(owner).to_vec();
        let own = config.clone();
        let is_apart = |nonce: u64, commits: &[u64]| {
            let mut label = found[0].label.clone();
            label.roots = roots(&label.roots[0], nonce, commits);
            is_apart(&label, &label.roots[0], Some(&own), &config, 3, &[])
        };
        for (nonce, commits, expected) in [
            // The owner itself, and one that is the last of the list.
            (3, &[99, 98, 97][..], false),
            // Up to the end of its owner, one root past it, and two.
            (1, &[20, 19, 18], false),
            (1, &[21, 20, 19], false),
            (1, &[22, 21, 20], true),
            (2, &[30, 29, 28], false),
            (2, &[31, 30, 29], false),
            (2, &[32, 31], true),
            // Nothing that an unknown owner wrote is on the line, unless it is too old to tell.
            (9, &[12], false),
            (9, &[12, 11], true),
            (9, &[11, 2], true),
            (9, &[10, 9, 8], false),
        ] {
            assert_eq!(is_apart(nonce, commits), expected, "owner {nonce}, {commits:?}");
        }
        // Roots of other owners in the ring do not count.
        let mut label = found[0].label.clone();
        let root = label.roots[0].clone();
        label.roots = [roots(&root, 9, &[13]), roots(&root, 1, &[12, 11])].concat();
        assert!(!super::is_apart(&label, &label.roots[0], Some(&own), &config, 3, &[]));
        // The list of the other owner may end before.
        label.roots = roots(&root, 3, &[99, 98]);
        assert!(!super::is_apart(&label, &label.roots[0], Some(&own), &config, 7, &[]));
    });
}

// It counts if it was written without each device of the others.
#[test]
fn one_root_past_the_end_counts_if_its_owner_had_left_the_others() {
    Runtime::simulated(2).block_on(async {
        let found = crashed().await;
        let mut config = found[0].label.configs[0].1.clone();
        let owner = |(nonce, after): (u64, u64)| OwnerConfig { nonce, after };
        config.lineage.owners = OWNERS_FROM.map(owner).to_vec();
        let mut label = found[0].label.clone();
        label.roots = roots(&label.roots[0], 1, &[21, 20]);
        let [b, c] = [1, 2].map(|at| config.groups[0].members[at].device);
        let says = [
            (MemberUse::Online, None, false),
            (MemberUse::Online, Some(3), true),
            (MemberUse::Offline, None, true),
            (MemberUse::Offline, Some(3), true),
        ];
        let root = &label.roots[0];
        let is_apart = |own: Option<&PoolConfig>, with: &[u32]| {
            super::is_apart(&label, root, own, &config, 3, with)
        };
        for (of_b, of_c) in says.iter().flat_map(|b| says.iter().map(move |c| (b, c))) {
            let mut own = config.clone();
            for (at, (state, since, _)) in [(1, of_b), (2, of_c)] {
                let member = &mut own.groups[0].members[at];
                (member.state, member.stale_since) = (*state, *since);
            }
            assert_eq!(is_apart(Some(&own), &[b, c]), of_b.2 && of_c.2, "{of_b:?} {of_c:?}");
            assert_eq!(is_apart(Some(&own), &[b]), of_b.2);
            assert!(!is_apart(Some(&own), &[]));
            // A device that it does not have is none that it writes to.
            assert_eq!(is_apart(Some(&own), &[c, 99]), of_c.2);
        }
        assert!(!is_apart(None, &[b, c]));
    });
}

#[test]
fn a_kept_half_takes_no_log_of_another_line() {
    Runtime::simulated(3).block_on(async {
        let mut found = crashed().await;
        let has_log = |found: &[Found]| {
            let all: Vec<&Found> = found.iter().collect();
            let history = one_history(all, Some("a")).unwrap();
            history.devices.iter().any(|device| device.path == "l")
        };
        assert!(has_log(&found));
        let log = found.iter_mut().find(|device| device.path == "l").unwrap();
        let owners = &mut log.label.configs[0].1.lineage.owners;
        let first = owners[0];
        // An import of this half that was cut short may have written it last.
        owners.push(OwnerConfig { nonce: 99, after: 1 });
        assert!(has_log(&found));
        let log = found.iter_mut().find(|device| device.path == "l").unwrap();
        log.label.configs[0].1.lineage.owners.remove(0);
        assert!(!has_log(&found));
        // An earlier owner of the line may have written it last.
        let log = found.iter_mut().find(|device| device.path == "l").unwrap();
        log.label.configs[0].1.lineage.owners.push(first);
        assert!(has_log(&found));
        let log = found.iter_mut().find(|device| device.path == "l").unwrap();
        log.label.configs[0].1.lineage.owners.clear();
        assert!(has_log(&found));
    });
}

#[test]
fn the_last_halves_that_were_left_behind_are_remembered() {
    Runtime::simulated(4).block_on(async {
        let mut found = crashed().await;
        let before: Vec<u64> = (1000..1000 + APART as u64).collect();
        for device in &mut found {
            for (_, config) in &mut device.label.configs {
                config.lineage.apart.clone_from(&before);
            }
        }
        let device = found.iter_mut().find(|device| device.path == "c").unwrap();
        let past = device.label.roots[0].commit.0;
        for (root, commit) in device.label.roots.iter_mut().zip([past + 9, past + 8]) {
            (root.nonce, root.commit) = (77, CommitId(commit));
        }
        for (_, config) in &mut device.label.configs {
            config.lineage.owners.push(OwnerConfig { nonce: 77, after: 1 });
        }
        let all: Vec<&Found> = found.iter().collect();
        let history = one_history(all, Some("a")).unwrap();
        let paths: Vec<&str> = history.devices.iter().map(|d| d.path.as_str()).collect();
        assert_eq!((paths, history.highest.0), (vec!["a", "b", "l"], past + 9));
        let mut expected = before[1..].to_vec();
        expected.push(77);
        assert_eq!(history.lineage.apart, expected);
    });
}

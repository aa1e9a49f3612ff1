//! What labels tell an import: which devices may have newer roots, which device is a member, and
//! whether enough are there. Each test changes what real labels say.

use std::rc::Rc;

use forebay_format::label::ConfigEnvelope;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::Opener;
use crate::tests::imports::{ALL, SIZE, make};
use crate::tests::names;
use crate::tests::rack::Rack;

/// The devices of a pool that has crashed, and its newest root with its configuration.
struct Crashed {
    _opener: Rc<FencedOpener>,
    found: Vec<Found>,
    root: Superblock,
    config: PoolConfig,
}

impl Crashed {
    async fn of(layout: Layout, data: &[&str], log: &[&str]) -> Self {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, layout, data, log).await;
        pool.sync().await.unwrap();
        let source: Rc<dyn Opener> = rack.host(1);
        let opener = FencedOpener::new(source);
        let found = look_at(&opener, &names(&ALL)).await.found;
        assert_eq!(found.len(), data.len() + log.len());
        let (root, config) = newest_root(&found.iter().collect::<Vec<_>>(), 0).unwrap();
        Self { _opener: opener, found, root, config }
    }

    fn all(&self) -> Vec<&Found> {
        self.found.iter().collect()
    }

    fn at(&mut self, path: &str) -> &mut Found {
        self.found.iter_mut().find(|found| found.path == path).expect("it has a label")
    }
}

fn copy(of: &Found, path: &str) -> Found {
    Found { path: path.to_owned(), guarded: of.guarded.clone(), label: of.label.clone() }
}

fn members(config: &mut PoolConfig) -> &mut Vec<MemberConfig> {
    &mut config.groups[0].members
}

#[test]
fn a_root_whose_configuration_is_gone_names_the_devices_that_have_it() {
    Runtime::simulated(1).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b", "c"], &[]).await;
        let newest = crashed.root.commit;
        for name in ["a", "c"] {
            crashed.at(name).label.roots[0].config_sum ^= 1;
        }
        crashed.at("b").label.roots.remove(0);
        let refused = newest_root(&crashed.all(), 0).unwrap_err();
        assert!(
            matches!(&refused, ImportErrorKind::NoConfiguration { root, holders, .. }
            if *root == newest && *holders == ["a", "c"]),
            "{refused:?}"
        );
        let has_older = |refused| match refused {
            ImportErrorKind::NoConfiguration { has_older, .. } => has_older,
            other => panic!("{other:?}"),
        };
        assert!(has_older(refused), "a rewind helps");
        for root in crashed.found.iter_mut().flat_map(|found| &mut found.label.roots) {
            root.config_sum ^= 2;
        }
        assert!(!has_older(newest_root(&crashed.all(), 0).unwrap_err()), "no rewind helps");
    });
}

#[test]
fn members_that_were_behind_are_not_named_where_newer_roots_may_be() {
    Runtime::simulated(2).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b", "c", "d"], &[]).await;
        members(&mut crashed.config)[1].stale_since = Some(1);
        members(&mut crashed.config)[3].state = MemberUse::Offline;
        crashed.found.retain(|found| found.path == "a");
        let refused = not_newest(Witness::LeftBehind, &crashed.config, &crashed.all());
        assert!(
            matches!(&refused, ImportErrorKind::RootNotNewest { missing, present, .. }
            if *missing == ["c"] && *present == ["a"]),
            "{refused:?}"
        );
    });
}

#[test]
fn a_log_that_has_left_the_pool_is_read_where_its_newest_label_is() {
    Runtime::simulated(3).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        assert_eq!(crashed.config.log_rings[0].sides.len(), 2);
        crashed.config.logs.clear();
        let mut older = copy(crashed.at("l"), "c");
        older.label.configs.iter_mut().for_each(|(envelope, _)| envelope.generation -= 1);
        crashed.found.push(older);
        let mut devices = BTreeMap::new();
        let Crashed { found, root, config, .. } = &mut crashed;
        let found: Vec<&Found> = found.iter().collect();
        place_devices(config, &found, root, &mut devices);
        let paths: Vec<&str> = devices.values().map(|open| open.path.as_str()).collect();
        assert_eq!(paths, ["a", "b", "l", "m"]);
    });
}

#[test]
fn a_member_is_the_newest_whole_device_with_its_label() {
    Runtime::simulated(4).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b"], &["l"]).await;
        let mut older = copy(crashed.at("a"), "c");
        older.label.roots.remove(0);
        crashed.found.push(older);
        let place = |crashed: &mut Crashed| {
            let mut devices = BTreeMap::new();
            let Crashed { found, root, config, .. } = crashed;
            let found: Vec<&Found> = found.iter().collect();
            let everywhere = place_devices(config, &found, root, &mut devices);
            let paths: Vec<String> = devices.values().map(|open| open.path.clone()).collect();
            (paths, everywhere)
        };
        let (newest, previous) = (crashed.root.commit, crashed.root.previous);
        assert_eq!(place(&mut crashed), (names(&["a", "b", "l"]), newest));
        assert!(crashed.config.data_members().all(|member| member.stale_since.is_none()));
        // One root behind misses nothing, two do.
        let newest_of_a = crashed.at("a").label.roots.remove(0);
        let (_, everywhere) = place(&mut crashed);
        assert_eq!(everywhere, previous, "the first member has no newer one");
        crashed.at("a").label.roots.insert(0, newest_of_a);
        crashed.at("b").label.roots.remove(0);
        assert_eq!(place(&mut crashed), (names(&["a", "b", "l"]), previous));
        assert!(crashed.config.data_members().all(|member| member.stale_since.is_none()));
        crashed.at("b").label.roots.remove(0);
        let last = crashed.at("b").label.roots[0].commit;
        assert_eq!(place(&mut crashed), (names(&["a", "b", "l"]), newest));
        assert_eq!(members(&mut crashed.config)[1].stale_since, Some(last.0));
        // It was behind before that.
        members(&mut crashed.config)[1].stale_since = Some(last.0 - 1);
        place(&mut crashed);
        assert_eq!(members(&mut crashed.config)[1].stale_since, Some(last.0 - 1));
        // It became shorter.
        members(&mut crashed.config)[1].size_bytes = SIZE + 1;
        assert_eq!(place(&mut crashed).0, ["a", "l"]);
        // A log side that missed a configuration missed frames.
        assert_eq!(crashed.config.logs[0].sides[0].state, MemberUse::Online);
        crashed.root.config_generation += 1;
        place(&mut crashed);
        assert_eq!(crashed.config.logs[0].sides[0].state, MemberUse::Faulted);
    });
}

/// What an import has of a member.
#[derive(Clone, Copy, PartialEq)]
enum Has {
    Nothing,
    NoRoots,
    OlderRoots,
    TheRoot,
}

const HAS: [Has; 4] = [Has::Nothing, Has::NoRoots, Has::OlderRoots, Has::TheRoot];

/// What the configuration after the root's says of a member.
const SAYS: [(MemberUse, Option<u64>); 3] =
    [(MemberUse::Online, None), (MemberUse::Online, Some(1)), (MemberUse::Offline, None)];

/// The digits of a number.
fn digits<T: Copy>(number: usize, of: &[T]) -> [T; 3] {
    std::array::from_fn(|at| of[number / of.len().pow(at as u32) % of.len()])
}

#[test]
fn a_configuration_without_a_root_tells_of_a_newer_one_if_it_left_all_that_have_this_one() {
    Runtime::simulated(5).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b", "c"], &[]).await;
        let root = crashed.root.clone();
        let mut refusals = 0;
        for (has, says) in (0..64).flat_map(|has| (0..27).map(move |says| (has, says))) {
            let (has, says) = (digits(has, &HAS), digits(says, &SAYS));
            if !has.contains(&Has::TheRoot) {
                continue;
            }
            let mut next = crashed.config.clone();
            for (member, (state, since)) in members(&mut next).iter_mut().zip(says) {
                (member.state, member.stale_since) = (state, since);
            }
            let mut found = Vec::new();
            for (device, has) in crashed.found.iter().zip(has).filter(|(_, h)| *h != Has::Nothing) {
                let mut device = copy(device, &device.path);
                match has {
                    Has::TheRoot => {}
                    Has::NoRoots => device.label.roots.clear(),
                    _ => device.label.roots.retain(|other| other.commit != root.commit),
                }
                let (envelope, _) = &device.label.configs[0];
                let newer =
                    ConfigEnvelope { generation: root.config_generation + 1, ..envelope.clone() };
                device.label.configs.insert(0, (newer, next.clone()));
                found.push(device);
            }
            let goes_on = |at: &usize| says[*at] == SAYS[0];
            let all = 0..3usize;
            let left = all.clone().filter(|at| has[*at] == Has::TheRoot).all(|at| !goes_on(&at));
            let gone = |at: usize| matches!(has[at], Has::Nothing | Has::NoRoots);
            let expected = left && all.filter(goes_on).any(gone);
            let found: Vec<&Found> = found.iter().collect();
            let options = ImportOptions::default();
            let told = check_newest(&crashed.config, &found, &root, root.host, &options);
            let is_refused = matches!(
                told,
                Err(ImportErrorKind::RootNotNewest { witness: Witness::LeftBehind, .. })
            );
            assert_eq!(is_refused, expected, "{told:?}");
            refusals += u32::from(is_refused);
        }
        assert!(refusals > 100, "{refusals}");
        crashed.found.clear();
    });
}

#[test]
fn a_mirror_needs_one_member_in_use() {
    Runtime::simulated(6).block_on(async {
        let mut crashed = Crashed::of(Layout::Mirror, &["a", "b"], &[]).await;
        let Crashed { found, root, config, .. } = &mut crashed;
        let found: Vec<&Found> = found.iter().collect();
        let mut devices = BTreeMap::new();
        place_devices(config, &found, root, &mut devices);
        let options = ImportOptions::default();
        members(config)[0].state = MemberUse::Offline;
        check_complete(config, &devices, root, &options).unwrap();
        devices.retain(|_, open| open.path == "a");
        let refused = check_complete(config, &devices, root, &options).unwrap_err();
        let ImportErrorKind::TooFewDevices { needed, usable, missing, out_of_use, .. } = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((needed, usable), (1, 0));
        assert_eq!((missing, out_of_use), (names(&["b"]), names(&["a"])));
    });
}

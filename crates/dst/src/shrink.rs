//! The shrinker: makes a failing scenario smaller while it fails with the same kind.

use crate::scenario::{Act, Boot, Fates, Loss, Scenario};
use crate::verdict::{Kind, Outcome};

/// Makes a smaller scenario: without up to `step` items at an index. `None` past the last item.
type Pass = fn(&Scenario, usize, usize) -> Option<Scenario>;

const PASSES: [Pass; 8] = [
    drop_boots,
    drop_takeovers,
    drop_clients,
    drop_admin,
    drop_faults,
    drop_events,
    drop_acts,
    simplify,
];

/// Returns the smallest scenario found within `budget` runs that still fails with `kind`, and the
/// number of runs.
pub fn shrink(
    scenario: &Scenario,
    kind: Kind,
    budget: usize,
    mut run: impl FnMut(&Scenario) -> Outcome,
) -> (Scenario, usize) {
    let mut best = scenario.clone();
    let mut runs = 0;
    let mut fails = |candidate: &Scenario, runs: &mut usize| {
        *runs += 1;
        run(candidate).failure.is_some_and(|failure| failure.kind == kind)
    };
    loop {
        let before = weight(&best);
        for pass in PASSES {
            let mut step = 1.max(largest(&best) / 2);
            while step > 0 && runs < budget {
                let mut at = 0;
                while runs < budget {
                    let Some(candidate) = pass(&best, at, step) else { break };
                    if candidate != best && fails(&candidate, &mut runs) {
                        best = candidate; // `at` now points at other items
                    } else {
                        at += step;
                    }
                }
                step /= 2;
            }
        }
        if weight(&best) == before || runs >= budget {
            return (best, runs);
        }
    }
}

fn weight(scenario: &Scenario) -> usize {
    serde_json::to_string(scenario).map_or(0, |text| text.len())
}

fn largest(scenario: &Scenario) -> usize {
    let clients = scenario.boots.iter().flat_map(|boot| boot.clients.iter().map(Vec::len));
    clients.chain(scenario.boots.iter().map(|b| b.clients.len())).max().unwrap_or(1)
}

/// Removes up to `step` items at index `at` of the concatenated lists. False past their end.
fn cut<'a, T: 'a>(lists: impl Iterator<Item = &'a mut Vec<T>>, at: usize, step: usize) -> bool {
    let mut start = 0;
    for list in lists {
        let end = start + list.len();
        if at < end {
            let from = at - start;
            list.drain(from..(from + step).min(list.len()));
            return true;
        }
        start = end;
    }
    false
}

fn drop_boots(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    cut(std::iter::once(&mut out.boots), at, step).then_some(())?;
    (!out.boots.is_empty()).then_some(out).or_else(|| Some(scenario.clone()))
}

fn drop_clients(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    cut(scripts(&mut out.boots), at, step).then_some(out)
}

/// The scripts of the clients of each machine, and of each half of a pool.
fn scripts(boots: &mut [Boot]) -> impl Iterator<Item = &mut Vec<Vec<Act>>> {
    boots.iter_mut().flat_map(|boot| {
        let others = boot.takeover.as_mut().map(|takeover| &mut takeover.clients);
        let halves = boot.apart.iter_mut().flat_map(|apart| &mut apart.halves);
        let halves = halves.map(|half| &mut half.boot.clients);
        std::iter::once(&mut boot.clients).chain(others).chain(halves)
    })
}

/// Removes a whole takeover, or what happens in one.
fn drop_takeovers(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    let of = |boots: &[Boot]| boots.iter().filter(|boot| boot.takeover.is_some()).count();
    let whole = of(&out.boots);
    let mut taken = out.boots.iter_mut().filter(|boot| boot.takeover.is_some());
    if at < whole {
        taken.nth(at)?.takeover = None;
        return Some(out);
    }
    let at = at - whole;
    let stands = || scenario.boots.iter().filter_map(|boot| boot.takeover.as_ref());
    let count: usize = stands().map(|takeover| takeover.stands.len()).sum();
    let mut takeovers = out.boots.iter_mut().filter_map(|boot| boot.takeover.as_mut());
    let is_cut = match at < count {
        true => cut(takeovers.map(|takeover| &mut takeover.stands), at, step),
        false => {
            let attempts = takeovers.by_ref().map(|takeover| &mut takeover.attempts);
            cut(attempts, at - count, step)
        }
    };
    is_cut.then_some(out)
}

fn drop_admin(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    cut(out.boots.iter_mut().map(|boot| &mut boot.admin), at, step).then_some(out)
}

fn drop_faults(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    if cut(out.boots.iter_mut().map(|boot| &mut boot.faults), at, step) {
        return Some(out);
    }
    // Behind the faults: what strikes the map journal.
    let mut at = at - out.boots.iter().map(|boot| boot.faults.len()).sum::<usize>();
    for boot in &mut out.boots {
        for is_there in [boot.map_rot.is_some(), boot.lost_map.is_some()] {
            if is_there && at == 0 {
                match boot.map_rot.take() {
                    Some(_) => {}
                    None => boot.lost_map = None,
                }
                return Some(out);
            }
            at -= usize::from(is_there);
        }
        if at < boot.stale_map.len() {
            boot.stale_map.remove(at);
            return Some(out);
        }
        at -= boot.stale_map.len();
    }
    None
}

/// Removes what happens to the machines and stores of a boot. Changes of the power and of networks
/// go as a whole, because what went off may have to come back.
fn drop_events(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let (mut out, mut at) = (scenario.clone(), at);
    for boot in &mut out.boots {
        let mut is_cut = cut_whole(&mut boot.power, &mut at)
            || cut_whole(&mut boot.network, &mut at)
            || cut_in(&mut boot.lost_objects, &mut at, step);
        if let Some(takeover) = &mut boot.takeover {
            let mut loss: Vec<Loss> = takeover.loss.take().into_iter().collect();
            is_cut = is_cut
                || cut_in(&mut takeover.misses, &mut at, step)
                || cut_in(&mut takeover.rival, &mut at, step)
                || cut_whole(&mut loss, &mut at);
            takeover.loss = loss.pop();
        }
        if is_cut {
            return Some(out);
        }
    }
    None
}

/// Removes up to `step` items at index `at` of the list, or passes it.
fn cut_in<T>(list: &mut Vec<T>, at: &mut usize, step: usize) -> bool {
    let is_cut = cut(std::iter::once(&mut *list), *at, step);
    if !is_cut {
        *at -= list.len();
    }
    is_cut
}

/// Removes the whole list if it is next and has items.
fn cut_whole<T>(list: &mut Vec<T>, at: &mut usize) -> bool {
    let is_cut = !list.is_empty() && *at == 0;
    *at -= usize::from(!list.is_empty() && !is_cut);
    if is_cut {
        list.clear();
    }
    is_cut
}

fn drop_acts(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    let mut out = scenario.clone();
    cut(scripts(&mut out.boots).flatten(), at, step).then_some(out)
}

/// Replaces one act or fate by a simpler one.
fn simplify(scenario: &Scenario, at: usize, step: usize) -> Option<Scenario> {
    if step > 1 {
        return None;
    }
    let mut out = scenario.clone();
    let mut place = 0;
    for boot in &mut out.boots {
        if let Some(crash) = &mut boot.crash {
            for fates in [Fates::Lost, Fates::Kept] {
                if place == at {
                    crash.fates = fates;
                    return Some(out);
                }
                place += 1;
            }
        }
        let others = boot.takeover.as_mut().map(|takeover| &mut takeover.clients);
        for act in boot.clients.iter_mut().chain(others.into_iter().flatten()).flatten() {
            if place == at {
                simplify_act(act);
                return Some(out);
            }
            place += 1;
        }
    }
    None
}

fn simplify_act(act: &mut Act) {
    match act {
        Act::Write { count, .. } | Act::Read { count, .. } | Act::Status { count, .. } => {
            *count = (*count / 2).max(1);
        }
        Act::Trim { count, .. } | Act::Zero { count, .. } => *count = (*count / 16 * 8).max(8),
        Act::Pause { ns } => *ns /= 2,
        Act::GiveUp { after_ns, .. } => *after_ns /= 2,
        Act::Flush { .. } | Act::Improper { .. } => {}
    }
}

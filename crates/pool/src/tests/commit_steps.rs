//! What holds between any two steps of a commit: what reads find, and what roots say of members.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_device::{Device, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_format::config::MemberUse;
use forebay_format::label::{
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS, body_range, label_offsets,
};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory, scripted};
use super::{spec, stamp, volume};
use crate::Pool;
use crate::commit::error::CommitError;
use crate::labels::read_label;
use crate::spec::VolumeSpec;

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
/// Blocks of the volume whose commits are looked at.
const BLOCKS: u64 = 4096;

type Look<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs `commit`, and begins a look between any two polls of it.
async fn looking_between_steps<'a>(
    commit: impl Future<Output = Result<(), CommitError>> + 'a,
    mut look: impl FnMut() -> Look<'a>,
) -> u64 {
    let (mut commit, mut looks, mut steps, mut outcome) =
        (Box::pin(commit), Vec::<Look<'a>>::new(), 0, None);
    let outcome = std::future::poll_fn(move |cx| {
        if outcome.is_none() {
            match commit.as_mut().poll(cx) {
                Poll::Ready(ended) => outcome = Some(ended),
                Poll::Pending => looks.push(look()),
            }
            steps += 1;
        }
        looks.retain_mut(|look| look.as_mut().poll(cx).is_pending());
        match looks.is_empty().then(|| outcome.take()).flatten() {
            Some(outcome) => Poll::Ready(outcome.map(|()| steps)),
            None => Poll::Pending,
        }
    });
    outcome.await.unwrap()
}

/// A block that becomes smaller when it is compressed; 0 gives zeroes.
fn content(salt: u64) -> IoBytes {
    IoBuf::copy_of(&salt.to_le_bytes().repeat(512)).freeze()
}

async fn look(v: Device, at: u64, salt: u64) {
    let found = v.read(at * BLOCK, IoBuf::zeroed(BLOCK as usize)).await.unwrap();
    assert!(found[..] == content(salt)[..], "block {at} is not {salt}");
}

/// Changes scattered blocks of a volume, and reads others between any two steps of the commit.
async fn reads_during_commits(properties: &[(&str, &str)], has_snapshots: bool) {
    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(memory(&["a", "b", "l"], SIZE), "tank", &options).await.unwrap();
    pool.set("txg_timeout", "600").await.unwrap();
    let properties = properties.iter().chain(&[("primarycache", "none")]);
    let properties = properties.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let spec = VolumeSpec { sparse: true, properties: properties.collect(), ..volume(16 << 20) };
    pool.create_volume(&spec).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let mut salts = vec![0; BLOCKS as usize];
    let mut steps = 0;
    for round in 1..=6u64 {
        for turn in 0..600 {
            let at = rt::random_below(BLOCKS);
            let salt = if turn % 5 == 4 { 0 } else { (round << 32) + turn / 3 };
            match salt {
                0 => v.discard(at * BLOCK, BLOCK, false).await.unwrap(),
                _ => v.write(at * BLOCK, content(salt), false).await.unwrap(),
            }
            salts[at as usize] = salt;
        }
        steps += looking_between_steps(pool.sync_group(), || {
            let places = [0; 8].map(|_| rt::random_below(BLOCKS));
            let reads = places.map(|at| look(v.clone(), at, salts[at as usize]));
            Box::pin(async move { drop(rt::join_all(reads).await) })
        })
        .await;
        if has_snapshots {
            pool.take_snapshots(&[format!("v@{round}")]).await.unwrap();
        }
    }
    assert!(steps > 60, "it was not seen: {steps}");
    for (at, salt) in salts.into_iter().enumerate() {
        look(v.clone(), at as u64, salt).await;
    }
    drop(v);
    pool.export().await.unwrap();
}

#[test]
fn reads_find_the_newest_data_between_any_two_steps_of_a_commit() {
    for (seed, properties) in
        [&[][..], &[("compression", "lz4")], &[("dedup", "on")]].iter().enumerate()
    {
        for has_snapshots in [false, true] {
            Runtime::simulated(seed as u64)
                .block_on(reads_during_commits(properties, has_snapshots));
        }
    }
}

/// Fails the flush, or the write to the body, number `fails_at` of device `b`, which answers last,
/// and sees what the roots that follow say of `b`.
struct FailsOnce {
    operation: Operation,
    fails_at: u64,
    seen: Cell<u64>,
    a: Device,
    has_failed: Cell<bool>,
    /// A root was begun after the failure.
    is_due: Cell<bool>,
    roots: Cell<u64>,
}

impl FailsOnce {
    fn is_counted(&self, command: &Command<'_>) -> bool {
        let (first, end) = body_range(SIZE);
        let is_in_body = (first..end).contains(&command.offset_bytes);
        let is_body = command.operation == Operation::Flush || is_in_body;
        command.device == "b" && command.operation == self.operation && is_body
    }

    fn is_root(command: &Command<'_>) -> bool {
        let is_label = |area: u64| {
            let at = command.offset_bytes.wrapping_sub(area + SUPERBLOCK_OFFSET_BYTES);
            at < SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES
        };
        let is_write = command.device == "a" && command.operation == Operation::Write;
        is_write && label_offsets(SIZE).into_iter().any(is_label)
    }

    /// Checks that the newest root on `a` does not call `b` current.
    async fn check(&self) {
        let label = read_label(&self.a).await;
        let root = &label.roots[0];
        let config = label.config(root.config_generation, root.config_sum).expect("it is there");
        let b = config.data_members().find(|member| member.path == "b").expect("a member");
        let is_known =
            b.state != MemberUse::Online || b.stale_since.is_some() || !b.stale.is_empty();
        assert!(is_known, "failure {}: root {:?} and {b:?}", self.fails_at, root.commit);
        self.roots.set(self.roots.get() + 1);
    }
}

impl Script for FailsOnce {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            self.is_due.set(self.is_due.get() || Self::is_root(&command) && self.has_failed.get());
            if self.is_counted(&command) {
                self.seen.set(self.seen.get() + 1);
                let is_it = self.seen.get() == self.fails_at;
                rt::sleep(Nanos::from_millis(10)).await;
                if is_it {
                    self.has_failed.set(true);
                    return Decision::Fail(ErrorKind::Os { errno: 5 });
                }
            }
            Decision::Run
        })
    }

    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        Box::pin(async move {
            if self.is_due.get() && Self::is_root(&command) {
                self.check().await;
            }
        })
    }
}

/// Returns whether `b` came to that command; nothing if that was before there was a pool.
fn member_fails_at(operation: Operation, fails_at: u64) -> Option<bool> {
    let rack = Rack::new(&["a", "b", "l"], SIZE);
    let script = Rc::new(FailsOnce {
        operation,
        fails_at,
        seen: Cell::new(0),
        a: rack.device("a"),
        has_failed: Cell::new(false),
        is_due: Cell::new(false),
        roots: Cell::new(0),
    });
    let opener = scripted(rack.host(1), script.clone());
    let is_made = Runtime::simulated(fails_at).block_on(async move {
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let Ok(pool) = Pool::create(opener, "tank", &options).await else { return false };
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for round in 0..4 {
            v.write(round << 16, stamp(65536, round), false).await.unwrap();
            pool.sync().await.unwrap();
        }
        pool.end().await.unwrap();
        true
    });
    let has_failed = script.has_failed.get();
    assert!(!is_made || !has_failed || script.roots.get() > 0, "no root followed {fails_at}");
    is_made.then_some(has_failed)
}

// After a power cut an import would take what the member lacks for current.
#[test]
fn a_root_that_follows_the_failure_of_a_member_says_so() {
    for operation in [Operation::Flush, Operation::Write] {
        let outcomes = (1..).map(|at| member_fails_at(operation, at));
        let failed = outcomes.flatten().take_while(|has_failed| *has_failed).count();
        assert!(failed >= 5, "{operation:?}: {failed}");
    }
}

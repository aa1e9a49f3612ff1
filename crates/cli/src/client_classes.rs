//! Operations of clients by class: how many, of how many bytes, and how long they took.
//!
//! What enters: operations that have ended. What leaves: figures for metrics. Who calls: `leases`,
//! for each holder of a volume, and `metrics`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use forebay_nbd::Peer;
use forebay_pool::status::Timings;
use forebay_units::Nanos;

/// The way on which clients come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// NBD over a Unix socket.
    Local,
    /// NBD over TCP.
    Network,
    /// Devices of this machine's kernel.
    Kernel,
    /// Virtual machines, by vhost-user-blk.
    Machine,
}

impl Class {
    /// The class of an NBD client.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match (peer.is_kernel, peer.uid) {
            (true, _) => Self::Kernel,
            (false, Some(_)) => Self::Local,
            (false, None) => Self::Network,
        }
    }

    /// The word in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Network => "network",
            Self::Kernel => "kernel",
            Self::Machine => "machine",
        }
    }
}

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// Data.
    Read,
    /// A write that may be lost with the server's memory.
    Write,
    /// A write that is durable when it is answered.
    DurableWrite,
    /// That all earlier writes become durable.
    Flush,
    /// That a range becomes zeros, or that its space is given back.
    Trim,
}

impl Request {
    /// The word in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::DurableWrite => "durable_write",
            Self::Flush => "flush",
            Self::Trim => "trim",
        }
    }

    /// A write with or without FUA.
    #[must_use]
    pub fn write(fua: bool) -> Self {
        if fua { Self::DurableWrite } else { Self::Write }
    }
}

/// The operations of one class and request.
#[derive(Clone, Debug, Default)]
struct Tally {
    bytes: u64,
    /// Operations by their time, to a hundredth.
    times: BTreeMap<u64, u64>,
}

/// Bytes and times of the operations of one class and request.
pub type Figures = (Class, Request, u64, Timings);

/// The operations of all clients since the start of the process.
#[derive(Default)]
pub struct ClientClasses(RefCell<BTreeMap<(Class, Request), Tally>>);

impl ClientClasses {
    /// Counts an operation that has ended.
    pub fn note(&self, class: Class, request: Request, bytes: u64, took: Nanos) {
        let mut all = self.0.borrow_mut();
        let tally = all.entry((class, request)).or_default();
        tally.bytes += bytes;
        *tally.times.entry(to_a_hundredth(took.0)).or_default() += 1;
    }

    /// What there was of each class and request.
    #[must_use]
    pub fn figures(&self) -> Vec<Figures> {
        let figures = |(&(class, request), tally): (&(Class, Request), &Tally)| {
            let times = tally.times.iter().map(|(nanos, count)| (*nanos, *count)).collect();
            (class, request, tally.bytes, Timings(times))
        };
        self.0.borrow().iter().map(figures).collect()
    }
}

/// The number with its seven highest bits alone: few numbers stand for all times.
fn to_a_hundredth(nanos: u64) -> u64 {
    let low = (u64::BITS - nanos.leading_zeros()).saturating_sub(7);
    nanos >> low << low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_a_hundredth_and_summed_by_class() {
        for nanos in [0, 1, 127, 128, 12_345, 9_999_999, u64::MAX] {
            let kept = to_a_hundredth(nanos);
            assert!(kept <= nanos && nanos - kept <= nanos / 64, "{nanos}: {kept}");
        }
        let classes = ClientClasses::default();
        classes.note(Class::Kernel, Request::Read, 4096, Nanos(10_000));
        classes.note(Class::Kernel, Request::Read, 8192, Nanos(10_010));
        classes.note(Class::Local, Request::write(true), 512, Nanos(70));
        let all = classes.figures();
        let counts = all.iter().map(|(c, r, bytes, t)| (*c, *r, *bytes, t.count()));
        let counts: Vec<_> = counts.collect();
        let local = (Class::Local, Request::DurableWrite, 512, 1);
        assert_eq!(counts, [local, (Class::Kernel, Request::Read, 12_288, 2)]);
    }

    #[test]
    fn peers_are_told_apart() {
        let peer = |uid, is_kernel| Peer { uid, is_kernel, ..Peer::default() };
        assert_eq!(Class::of(&peer(Some(0), true)), Class::Kernel);
        assert_eq!(Class::of(&peer(Some(7), false)), Class::Local);
        assert_eq!(Class::of(&peer(None, false)), Class::Network);
    }
}

//! Progress: how fast a client works on what it holds in the server's memory.

use std::cell::Cell;
use std::rc::Rc;

use forebay_units::Nanos;

use super::state::Connection;

/// The rate of a client is taken over this span, while a request waits for memory.
pub(super) const RATE_INTERVAL: Nanos = Nanos::from_secs(1);

/// What is known of the pace of one client.
#[derive(Default)]
pub(super) struct Progress {
    /// When the rate was taken last, and the bytes that had moved by then.
    seen: Cell<Option<(Nanos, u64)>>,
    /// Bytes a second between the last two looks that lay [`RATE_INTERVAL`] apart.
    rate: Cell<Option<u64>>,
    is_evicted: Cell<bool>,
}

impl Progress {
    /// Whether the client was disconnected to make room.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    pub(super) fn evict(&self) {
        self.is_evicted.set(true);
    }

    /// Notes that the client has nothing to work on: it may wait for the server, and its rate says
    /// nothing.
    fn rest(&self) {
        self.seen.set(None);
        self.rate.set(None);
    }

    /// Notes that `moved_bytes` have gone through the connection by `now`. Returns the rate in
    /// bytes a second; `None` when two looks are missing, the older one less than twice
    /// [`RATE_INTERVAL`] ago.
    fn look(&self, moved_bytes: u64, now: Nanos) -> Option<u64> {
        match self.seen.get() {
            Some((at, before)) if now.since(at) <= Nanos(2 * RATE_INTERVAL.0) => {
                let span = now.since(at);
                if span >= RATE_INTERVAL {
                    let moved = u128::from(moved_bytes - before);
                    self.rate.set(Some((moved * 1_000_000_000 / u128::from(span.0)) as u64));
                    self.seen.set(Some((now, moved_bytes)));
                }
            }
            // The last look belongs to an earlier shortage.
            _ => {
                self.rate.set(None);
                self.seen.set(Some((now, moved_bytes)));
            }
        }
        self.rate.get()
    }
}

/// Of the clients that would take longer than `slow_drain` for what they hold, the one that holds
/// the most.
pub(super) fn slowest(
    clients: impl Iterator<Item = Rc<Connection>>,
    slow_drain: Nanos,
    now: Nanos,
) -> Option<Rc<Connection>> {
    let is_slow = |client: &Rc<Connection>| {
        if client.owed_bytes() == 0 {
            client.progress.rest();
            return false;
        }
        let rate = client.progress.look(client.stream.moved_bytes(), now);
        let within = |rate| u128::from(slow_drain.0) * u128::from(rate) / 1_000_000_000;
        rate.is_some_and(|rate| u128::from(client.owed_bytes()) > within(rate))
    };
    clients.filter(is_slow).max_by_key(|client| client.owed_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_a_client_waits_for_the_server_does_not_slow_it() {
        let progress = Progress::default();
        assert_eq!(progress.look(0, Nanos::ZERO), None);
        assert_eq!(progress.look(4096, Nanos::from_secs(1)), Some(4096));
        progress.rest();
        assert_eq!(progress.look(4096, Nanos::from_secs(2)), None, "it has just begun to work");
        assert_eq!(progress.look(8192, Nanos::from_millis(2500)), None, "too short a span");
        assert_eq!(progress.look(12288, Nanos::from_secs(3)), Some(8192));
    }
}

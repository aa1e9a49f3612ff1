//! Watchdog of a connection: ends it when its client stalls, or when its export is revoked.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use super::state::Connection;
use crate::exports::Revocation;

/// Time for the client of a revoked export to take its last replies.
const REVOKED_DRAIN_DEADLINE: Nanos = Nanos::from_secs(5);

/// State that a connection shares with its watchdog.
#[derive(Default)]
pub(super) struct Watchdog {
    connection_ended: Cell<bool>,
    changed: Notify,
    timed_out: Cell<bool>,
}

impl Watchdog {
    /// Ends the watchdog's tasks.
    pub(super) fn stop(&self) {
        self.connection_ended.set(true);
        self.changed.notify_all();
    }

    /// Whether the watchdog ended the connection because its client stalled.
    pub(super) fn timed_out(&self) -> bool {
        self.timed_out.get()
    }

    async fn stopped(&self) {
        self.changed.until(|| self.connection_ended.get()).await;
    }
}

/// Ends the connection when its export is revoked. It takes no further requests; a client that
/// does not take its last replies is disconnected at the deadline.
pub(super) async fn watch_revocation(
    revocation: Rc<Revocation>,
    stream: Rc<Stream>,
    watchdog: Rc<Watchdog>,
) {
    let (revoked, stopped) = (Box::pin(revocation.revoked()), Box::pin(watchdog.stopped()));
    if let rt::Either::Right(_) = rt::select(revoked, stopped).await {
        return;
    }
    stream.shutdown_receive();
    if rt::timeout(REVOKED_DRAIN_DEADLINE, watchdog.stopped()).await.is_err() {
        stream.shutdown();
    }
}

/// Ends the connection of a client that stalls within a request, or that does not take its replies
/// while other connections wait for memory. `partial` is the incomplete message of the inbox.
///
/// The task wakes twice per deadline, so that requests themselves need no timers.
pub(super) async fn watch_stalls(
    connection: Rc<Connection>,
    stream: Rc<Stream>,
    partial: Rc<Cell<u64>>,
    watchdog: Rc<Watchdog>,
) {
    let half = Nanos(connection.server.limits.stall_deadline.0 / 2 + 1);
    let (mut receiving, mut sending) = (StallCount::default(), StallCount::default());
    while !watchdog.connection_ended.get() {
        if rt::timeout(half, watchdog.changed.notified()).await.is_ok() {
            continue;
        }
        let receive_stalls = receiving.observe(partial.get());
        let send_stalls = sending.observe(connection.outbox.sending());
        let blocks_others = connection.server.memory.has_waiters();
        if receive_stalls >= 2 || (send_stalls >= 2 && blocks_others) {
            watchdog.timed_out.set(true);
            stream.shutdown();
            return;
        }
    }
}

/// Counts how often the same message was seen in work.
#[derive(Default)]
struct StallCount {
    message: u64,
    repeats: u32,
}

impl StallCount {
    /// Notes the number of the message in work, 0 for none; returns the repeats of that number.
    fn observe(&mut self, message: u64) -> u32 {
        let is_same = message != 0 && message == self.message;
        self.repeats = if is_same { self.repeats + 1 } else { 0 };
        self.message = message;
        self.repeats
    }
}

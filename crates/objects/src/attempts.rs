//! Requests that have no answer yet: which of them fail alone, and whether the store is silent.
//!
//! What enters: beginnings, failures and answers of requests. What leaves: requests that fail again
//! and again although others are answered; for how long none was. Who calls: `requests`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use forebay_device::{FailingRequest, StoreRequest};
use forebay_rt as rt;
use forebay_units::Nanos;

/// Failures in a row, with an answer to another request before each, after which a request is
/// named.
const NAMED_AFTER_FAILURES: u64 = 3;
/// The shortest time for which a request that is named has failed.
const NAMED_AFTER: Nanos = Nanos::from_secs(10);
/// Requests that are named at once.
const MAX_NAMED: usize = 8;

/// Requests of one store without an answer.
#[derive(Default)]
pub(crate) struct Attempts {
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    next: Cell<u64>,
    /// When the store last answered a request.
    answered_at: Cell<Option<Nanos>>,
}

struct Waiting {
    request: StoreRequest,
    object: String,
    since: Nanos,
    failures: u64,
    failed_at: Nanos,
    /// Failures in a row that each came after an answer to another request.
    alone: u64,
    error: String,
}

/// A request that waits for its answer. It is forgotten when this is dropped.
pub(crate) struct Attempt<'a> {
    attempts: &'a Attempts,
    number: u64,
}

impl Attempts {
    /// A request begins.
    pub fn begin(&self, (request, object): (StoreRequest, &str)) -> Attempt<'_> {
        let number = self.next.replace(self.next.get() + 1);
        let (object, now) = (object.to_owned(), rt::now());
        let (failures, alone, error) = (0, 0, String::new());
        let waiting =
            Waiting { request, object, since: now, failures, failed_at: now, alone, error };
        self.waiting.borrow_mut().insert(number, waiting);
        Attempt { attempts: self, number }
    }

    /// For how long no request was answered, if one waits, and the last failure meanwhile.
    pub fn silence(&self) -> Option<(Nanos, Option<String>)> {
        let waiting = self.waiting.borrow();
        // One that fails alone says nothing of the store.
        let unanswered = || {
            let is_newer = |w: &&Waiting| self.answered_at.get().is_none_or(|at| w.since >= at);
            waiting.values().filter(|w| !w.is_named()).filter(is_newer)
        };
        let begun = unanswered().map(|w| w.since).min()?;
        let failed = unanswered().filter(|w| w.failures > 0).max_by_key(|w| w.failed_at);
        Some((rt::now().since(begun), failed.map(|w| w.error.clone())))
    }

    /// Requests that fail again and again while others are answered, oldest first.
    pub fn failing(&self) -> Vec<FailingRequest> {
        let waiting = self.waiting.borrow();
        let named = waiting.values().filter(|waiting| waiting.is_named());
        let failing = named.map(|w| FailingRequest {
            request: w.request,
            object: w.object.clone(),
            failing_for: rt::now().since(w.since),
            attempts: w.failures,
            error: w.error.clone(),
        });
        failing.take(MAX_NAMED).collect()
    }
}

impl Waiting {
    fn is_named(&self) -> bool {
        self.alone >= NAMED_AFTER_FAILURES && self.failed_at.since(self.since) >= NAMED_AFTER
    }
}

impl Attempt<'_> {
    /// The store did not answer, or asked to be left alone.
    pub fn failed(&self, error: &str) {
        let mut waiting = self.attempts.waiting.borrow_mut();
        let Some(waiting) = waiting.get_mut(&self.number) else { return };
        let others_were_answered =
            self.attempts.answered_at.get().is_some_and(|at| at > waiting.failed_at);
        waiting.alone = if others_were_answered { waiting.alone + 1 } else { 0 };
        waiting.failures += 1;
        waiting.failed_at = rt::now();
        error.clone_into(&mut waiting.error);
    }

    /// The store answered.
    pub fn answered(&self) {
        self.attempts.answered_at.set(Some(rt::now()));
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.attempts.waiting.borrow_mut().remove(&self.number);
    }
}

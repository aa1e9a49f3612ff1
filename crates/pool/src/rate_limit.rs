//! Limits of a volume: requests and bytes a second.
//!
//! A request begins when those before it have used up their time: the generic cell rate algorithm
//! of ITU-T I.371, with a queue instead of a refusal.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

/// Idle time that may be made up for, so that a burst is not cut into single requests.
const BURST: Nanos = Nanos::from_millis(10);

/// A rate that requests keep to, or none.
pub(crate) struct RateLimit {
    per_second: Cell<Option<u64>>,
    /// When the next request may begin.
    due: Cell<Nanos>,
    changed: Rc<Notify>,
}

impl RateLimit {
    pub fn new(per_second: Option<u64>) -> Self {
        let per_second = Cell::new(per_second);
        Self { per_second, due: Cell::new(Nanos::ZERO), changed: Notify::new() }
    }

    /// Sets another limit, also for requests that wait.
    pub fn set(&self, per_second: Option<u64>) {
        self.per_second.set(per_second);
        self.due.set(Nanos::ZERO);
        self.changed.notify_all();
    }

    /// Waits for the turn of a request of `cost`.
    pub async fn take(&self, cost: u64) {
        while let Some(per_second) = self.per_second.get() {
            let now = rt::now();
            let begins = self.due.get().max(Nanos(now.0.saturating_sub(BURST.0)));
            let span = u128::from(cost) * 1_000_000_000 / u128::from(per_second.max(1));
            self.due.set(Nanos(begins.0.saturating_add(u64::try_from(span).unwrap_or(u64::MAX))));
            if begins <= now {
                return;
            }
            let changed = Box::pin(self.changed.notified());
            if let rt::Either::Left(_) = rt::select(rt::sleep_until(begins), changed).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that `count` requests of `cost` take that wait together.
    async fn seconds(limit: &Rc<RateLimit>, count: u64, cost: u64) -> f64 {
        let begun = rt::now();
        let takes = (0..count).map(|_| {
            let limit = limit.clone();
            rt::spawn(async move { limit.take(cost).await })
        });
        rt::join_all(takes.collect::<Vec<_>>()).await;
        rt::now().since(begun).0 as f64 / 1e9
    }

    #[test]
    fn requests_keep_to_the_rate() {
        rt::Runtime::simulated(1).block_on(async {
            let limit = Rc::new(RateLimit::new(Some(1000)));
            rt::sleep(Nanos::from_secs(10)).await;
            // However long nothing happened, only the burst is made up for.
            let took = seconds(&limit, 5000, 1).await;
            assert!((4.98..5.0).contains(&took), "{took}");
            let took = seconds(&limit, 10, 4096).await;
            assert!((36.8..37.0).contains(&took), "{took}");
            let slowest = Rc::new(RateLimit::new(Some(1)));
            let took = seconds(&slowest, 4, 1).await;
            assert!((2.9..=3.0).contains(&took), "{took}");
        });
    }

    /// A hundred requests at one a second, five seconds after they began.
    async fn waiting_for_long() -> (Rc<RateLimit>, rt::JoinHandle<f64>) {
        let limit = Rc::new(RateLimit::new(Some(1)));
        let waiting = rt::spawn({
            let limit = limit.clone();
            async move { seconds(&limit, 100, 1).await }
        });
        rt::sleep(Nanos::from_secs(5)).await;
        (limit, waiting)
    }

    #[test]
    fn a_limit_that_is_lifted_lets_waiting_requests_go() {
        rt::Runtime::simulated(2).block_on(async {
            let (limit, waiting) = waiting_for_long().await;
            limit.set(Some(50));
            rt::sleep(Nanos::from_secs(1)).await;
            assert!(!waiting.is_finished());
            limit.set(None);
            assert!(waiting.await < 6.1);
            assert!(seconds(&limit, 1000, 1 << 30).await == 0.0);
        });
    }

    #[test]
    fn a_limit_that_is_raised_holds_for_requests_that_wait() {
        rt::Runtime::simulated(3).block_on(async {
            let (limit, waiting) = waiting_for_long().await;
            limit.set(Some(50));
            let took = waiting.await;
            assert!((6.5..7.1).contains(&took), "{took}");
        });
    }
}

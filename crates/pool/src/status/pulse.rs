//! What changes with each request: counts, and how long operations took, since import.

use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use super::Traffic;

/// A pool at one moment, as those who look every second want it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Operations of clients, and what they cost.
    pub traffic: Traffic,
    /// Bytes of data not yet in the main store.
    pub dirty_bytes: u64,
    /// Log space in use.
    pub log_used_bytes: u64,
    /// How long durable writes, flushes and reads took, in this order.
    pub latencies: [Timings; 3],
}

/// How many operations took how long: nanoseconds to a hundredth, in rising order, with the number
/// of those that took so long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings(pub Vec<(u64, u64)>);

impl Timings {
    /// How many operations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Seconds of all of them together.
    #[must_use]
    pub fn sum_secs(&self) -> f64 {
        self.0.iter().map(|(nanos, count)| *nanos as f64 * *count as f64 / 1e9).sum()
    }

    /// How many took no longer than each of `bounds`, which rise.
    #[must_use]
    pub fn at_most(&self, bounds: &[Nanos]) -> Vec<u64> {
        let mut places = self.0.iter().peekable();
        let mut sum = 0;
        let up_to = |bound: &Nanos| {
            while let Some((_, count)) = places.next_if(|(nanos, _)| *nanos <= bound.0) {
                sum += count;
            }
            sum
        };
        bounds.iter().map(up_to).collect()
    }

    /// Those of them that are not in `before`, which was taken earlier.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut old = before.0.iter().peekable();
        let new = self.0.iter().filter_map(|(nanos, count)| {
            while old.next_if(|(at, _)| at < nanos).is_some() {}
            let earlier = old.next_if(|(at, _)| at == nanos).map_or(0, |(_, count)| *count);
            let count = count.saturating_sub(earlier);
            (count > 0).then_some((*nanos, count))
        });
        Self(new.collect())
    }

    /// The time that the share `quantile` of the operations did not exceed; `None` if there were
    /// none.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Nanos> {
        let rank = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let mut sum = 0;
        let place = self.0.iter().find(|(_, count)| {
            sum += count;
            sum >= rank
        });
        place.map(|(nanos, _)| Nanos(*nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_count_what_took_no_longer() {
        let timings = Timings(vec![(100, 2), (200, 3), (1_000, 1)]);
        let bounds = [50, 100, 199, 200, 5_000].map(Nanos);
        assert_eq!(timings.at_most(&bounds), [0, 2, 2, 5, 6]);
        assert_eq!(timings.count(), 6);
        assert!((timings.sum_secs() - 1_800e-9).abs() < 1e-15);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let before = Timings(vec![(100, 2), (200, 3)]);
        let after = Timings(vec![(100, 2), (150, 4), (200, 5), (300, 1)]);
        assert_eq!(after.since(&before), Timings(vec![(150, 4), (200, 2), (300, 1)]));
        assert_eq!(after.since(&after), Timings::default());
        assert_eq!(after.since(&Timings::default()), after);
        // Of a time that is not there any more nothing came.
        let other = Timings(vec![(50, 1), (60, 1), (70, 1), (120, 7), (200, 3)]);
        assert_eq!(after.since(&other), Timings(vec![(100, 2), (150, 4), (200, 2), (300, 1)]));
    }

    #[test]
    fn quantiles_are_the_smallest_times_that_hold_the_share() {
        let timings = Timings(vec![(100, 98), (200, 1), (900, 1)]);
        let of = |quantile| timings.quantile(quantile).unwrap().0;
        assert_eq!((of(0.0), of(0.5), of(0.98), of(0.99), of(1.0)), (100, 100, 100, 200, 900));
        assert_eq!(Timings(vec![(100, 1), (200, 1)]).quantile(0.0), Some(Nanos(100)));
        assert_eq!(Timings::default().quantile(0.5), None);
    }
}

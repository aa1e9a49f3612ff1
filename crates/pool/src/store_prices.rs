//! The price table of an object store, and what a pool's requests and objects come to by it.

use crate::Pool;
use crate::status::{ObjectsStatus, StoreCost, StoreSummary};

/// Prices in millionths of the operator's currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StorePrices {
    /// Of a thousand puts or listings.
    puts: u64,
    /// Of a thousand gets.
    gets: u64,
    /// Of a gibibyte that is stored for a month.
    month: u64,
    /// Of a gibibyte that is read.
    egress: u64,
}

/// Amazon S3 Standard in us-east-1: `docs/objects.md` has the source.
pub(crate) const DEFAULT_PRICES: &str = "put=0.005,get=0.0004,month=0.023,egress=0.09";

impl StorePrices {
    /// From a text such as [`DEFAULT_PRICES`], which names each at most once. What it does not name
    /// costs nothing.
    pub fn parse(text: &str) -> Option<Self> {
        const NAMES: [&str; 4] = ["put", "get", "month", "egress"];
        let mut found = [None; 4];
        for price in text.split(',') {
            let (name, value) = price.split_once('=')?;
            let at = NAMES.iter().position(|known| *known == name)?;
            if found[at].replace(parse_millionths(value)?).is_some() {
                return None;
            }
        }
        let [puts, gets, month, egress] = found.map(Option::unwrap_or_default);
        Some(Self { puts, gets, month, egress })
    }

    fn cost(&self, store: &ObjectsStatus) -> StoreCost {
        let thousands = |count: u64| count as f64 / 1e3;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let of = |price: u64, amount: f64| price as f64 / 1e6 * amount;
        StoreCost {
            requests: of(self.puts, thousands(store.puts + store.lists))
                + of(self.gets, thousands(store.gets)),
            egress: of(self.egress, gib(store.got_bytes)),
            stored_a_month: of(self.month, gib(store.stored_bytes)),
        }
    }
}

/// Millionths in a number such as `0.0004`: below a million, with six digits after the point at
/// most.
fn parse_millionths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain(whole) || !is_plain(part) || part.len() > 6 || whole.len() > 6 {
        return None;
    }
    Some(whole.parse::<u64>().ok()? * 1_000_000 + format!("{part:0<6}").parse::<u64>().ok()?)
}

impl Pool {
    /// What the pool's devices in object stores come to; none if it has none.
    pub(crate) fn store_summary(&self) -> Option<StoreSummary> {
        let stores = self.stores();
        let sum = |of: fn(&ObjectsStatus) -> u64| stores.iter().map(|(_, store)| of(store)).sum();
        let prices = self.settings.get().store_prices;
        let costs = stores.iter().map(|(_, store)| prices.cost(store));
        let cost = costs.reduce(|a, b| StoreCost {
            requests: a.requests + b.requests,
            egress: a.egress + b.egress,
            stored_a_month: a.stored_a_month + b.stored_a_month,
        })?;
        Some(StoreSummary {
            objects: sum(|store| store.objects),
            stored_bytes: sum(|store| store.stored_bytes),
            requests: sum(|store| store.puts + store.gets + store.lists),
            retries: sum(|store| store.retries),
            cost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_multiplied() {
        let prices = StorePrices::parse("put=0.005,get=0.0004,month=0.023,egress=0.09").unwrap();
        let (puts, lists, gets) = (900_000, 100_000, 5_000_000);
        let (stored_bytes, got_bytes) = (100 << 30, 10 << 30);
        let store =
            ObjectsStatus { puts, lists, gets, stored_bytes, got_bytes, ..Default::default() };
        let cost = prices.cost(&store);
        assert!((cost.requests - 7.0).abs() < 1e-9, "{cost:?}");
        assert!((cost.egress - 0.9).abs() < 1e-9, "{cost:?}");
        assert!((cost.stored_a_month - 2.3).abs() < 1e-9, "{cost:?}");
        // What is not named costs nothing.
        let cost = StorePrices::parse("month=1").unwrap().cost(&store);
        assert_eq!((cost.requests, cost.egress, cost.stored_a_month), (0.0, 0.0, 100.0));
        let most = StorePrices::parse("month=999999.999999").unwrap().cost(&store);
        assert_eq!(most.stored_a_month, 99_999_999.999_9);
    }

    #[test]
    fn other_texts_are_no_prices() {
        let bad = [
            "",
            "put",
            "put=",
            "put=-1",
            "put=1e3",
            "put=0.0000001",
            "put=1000000",
            "put=1.",
            "gets=1",
            "put=.5,",
            "put=1,put=2",
        ];
        for text in bad {
            assert_eq!(StorePrices::parse(text), None, "{text}");
        }
    }
}

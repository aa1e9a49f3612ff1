//! Notices when a pool is less well than it was, or well again, and says so: servers mostly run
//! where nobody looks at a live line.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::{Health, PoolStatus};

/// What was said of each pool last. A pool that was never seen counts as well.
#[derive(Default)]
pub struct Watch {
    said: BTreeMap<String, Health>,
}

impl Watch {
    /// The lines to say now.
    pub fn look(&mut self, pools: &[Rc<Pool>]) -> Vec<String> {
        let named = |name: &String| pools.iter().any(|pool| pool.name() == *name);
        self.said.retain(|name, _| named(name));
        let mut lines = Vec::new();
        for pool in pools {
            let health = pool.summary().health;
            let before = self.said.insert(pool.name(), health).unwrap_or(Health::Online);
            if health != before {
                lines.push(line(before, &pool.status()));
            }
        }
        lines
    }
}

/// What is said of a pool whose health was `before`.
#[must_use]
pub fn line(before: Health, now: &PoolStatus) -> String {
    let mut text =
        format!("pool '{}' went from {} to {}", now.name, before.as_str(), now.state.as_str());
    if !now.status.is_empty() {
        text.push_str(&format!(": {}", now.status));
    }
    if now.state != Health::Online {
        text.push_str(&format!(" 'forebay pool status {}' says what to do.", now.name));
    }
    text
}

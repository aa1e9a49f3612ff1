//! What the page shows: the pools and the server as JSON, and the points of the charts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::{PoolStats, PoolStatus, PoolSummary, VolumeStatus};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::Serialize;

use super::history::{FIELDS, History};
use crate::clock::now_secs;
use crate::control::StatusReport;
use crate::drives::Drive;
use crate::explain::advice;
use crate::render::{JSON_VERSION, advised};

/// How long what was gathered of the pools is good enough: however many look, it is gathered once.
const GATHERED_FOR: Nanos = Nanos::from_millis(900);
/// Events that are shown.
const MAX_EVENTS: usize = 64;

/// The drives below a pool's devices, by the paths of these.
type DrivesOfPool = BTreeMap<String, Drive>;

/// What gives the pools, and the number of clients.
pub struct Source {
    /// The pools.
    pub pools: Box<dyn Fn() -> Vec<Rc<Pool>>>,
    /// The drives below them.
    pub drives: Box<dyn Fn(&PoolStatus) -> DrivesOfPool>,
    /// Open connections.
    pub clients: Box<dyn Fn() -> usize>,
}

/// What the page shows of a server.
pub struct State {
    source: Source,
    began: Nanos,
    /// By the pool's id.
    histories: RefCell<BTreeMap<u64, History>>,
    gathered: RefCell<Option<(Nanos, Gathered)>>,
}

/// What changes slowly, as JSON: the server, and the fields of each pool by its id.
#[derive(Clone)]
struct Gathered {
    server: String,
    pools: Vec<(u64, String)>,
}

#[derive(Serialize)]
struct Server {
    version: &'static str,
    pid: u32,
    time_secs: u64,
    uptime_secs: u64,
    clients: usize,
}

#[derive(Serialize)]
struct PoolView {
    status: StatusReport,
    summary: PoolSummary,
    stats: PoolStats,
    volumes: Vec<VolumeStatus>,
    events: Vec<serde_json::Value>,
}

impl State {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(source: Source) -> Rc<Self> {
        Rc::new(Self {
            source,
            began: rt::now(),
            histories: RefCell::default(),
            gathered: RefCell::default(),
        })
    }

    /// Takes a point of each pool.
    pub(super) fn note(&self) {
        let (pools, time_secs, now) = ((self.source.pools)(), now_secs(), rt::now());
        let mut histories = self.histories.borrow_mut();
        histories.retain(|guid, _| pools.iter().any(|pool| pool.guid() == *guid));
        for pool in pools {
            histories.entry(pool.guid()).or_default().note(&pool.pulse(), time_secs, now);
        }
    }

    /// The whole document, with the points that are later than `after` (seconds since 1970).
    pub(super) fn json(&self, after: u64) -> String {
        let Gathered { server, pools } = self.gathered();
        let histories = self.histories.borrow();
        let nothing = History::default();
        let pool = |(guid, fields): (u64, String)| {
            let points = histories.get(&guid).unwrap_or(&nothing).json(after);
            format!("{{{points},\"view\":{fields}}}")
        };
        let pools: Vec<String> = pools.into_iter().map(pool).collect();
        let fields = serde_json::to_string(&FIELDS).expect("plain data becomes JSON");
        format!(
            "{{\"version\":{JSON_VERSION},\"server\":{server},\"fields\":{fields},\
             \"pools\":[{}]}}\n",
            pools.join(",")
        )
    }

    fn gathered(&self) -> Gathered {
        let now = rt::now();
        if let Some((at, gathered)) = &*self.gathered.borrow() {
            if now.since(*at) < GATHERED_FOR {
                return gathered.clone();
            }
        }
        let server = Server {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            time_secs: now_secs(),
            uptime_secs: now.since(self.began).0 / 1_000_000_000,
            clients: (self.source.clients)(),
        };
        let text = |pool: &Rc<Pool>| {
            let view =
                serde_json::to_string(&view(pool, &self.source)).expect("plain data becomes JSON");
            (pool.guid(), view)
        };
        let gathered = Gathered {
            server: serde_json::to_string(&server).expect("plain data becomes JSON"),
            pools: (self.source.pools)().iter().map(text).collect(),
        };
        *self.gathered.borrow_mut() = Some((now, gathered.clone()));
        gathered
    }
}

fn view(pool: &Rc<Pool>, source: &Source) -> PoolView {
    let mut events = pool.events_after(0);
    events.drain(..events.len().saturating_sub(MAX_EVENTS));
    let status = pool.status();
    PoolView {
        status: StatusReport {
            drives: (source.drives)(&status),
            pool: status,
            advice: advice(&pool.name(), &pool.condition()),
        },
        summary: pool.summary(),
        stats: pool.stats(),
        volumes: pool.volumes(),
        events: events.iter().map(|event| serde_json::json!(advised(event))).collect(),
    }
}

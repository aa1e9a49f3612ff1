//! Experiment `hybrid`: disks alone, with a log, with log and read cache, and all flash.

use super::common::{figure, percent, response_table, say};
use super::{Context, Plan, procedures};
use crate::catalogue::{self, Fact, Page};
use crate::drive::Cell;
use crate::hybrid::{Hybrid, HybridOutcome, Span};
use crate::load::{Load, Places};
use crate::task::{Outcome, Task};
use crate::timeline::{Phase, TimelineOutcome};
use forebay_flash::{CleaningPolicy, DeviceSpec, MediaSpec};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Finding, Point,
    Series, Table,
};
use forebay_units::Layout;

pub(super) const PLAN: Plan = Plan {
    id: "hybrid",
    title: "The hybrid pool",
    question: "What do a log device and a cache device add to slow disks, and what do flash drives \
               alone cost?",
    method: "The pool's own code in virtual time over simulated devices: six disks as raidz1; the \
             same with a log device; with a log device, memory and a cache device for reads; and \
             as many flash drives as have the capacity of the disks, as raidz1 in groups of ten. \
             Disks, drives, cache device, memory and volume are smaller by the same factor, the \
             speeds stay. The volume takes 40 % of the disks and is filled once. Then the load \
             runs for an hour of the smaller pool, or for 3,000,000 requests or twice the volume, \
             so that caches settle, before it counts. The pool's segments are smaller on smaller \
             disks and a seek takes as long, so that writes that reach the disks are slower than \
             at full size. Requests go to places by Zipf's law (0.99), but for synchronous writes \
             (uniform) and the fill (in order). Processor time is not part of the model. Power is \
             that of the devices without the machine.",
    devices: &["ddrdrive-x1"],
    small: &["ddrdrive-x1"],
    cells,
    show,
};

const DISK: &str = "generic-disk-7200-2tb";
const CACHE: &str = "intel-320-600gb";
const FLASH: &str = "intel-320-600gb";
const DISKS: u32 = 6;
/// Flash drives of a group.
const FLASH_GROUP: u32 = 10;
/// Memory for reads of the full-size pool.
const MEMORY_BYTES: u64 = 64 << 30;
/// The volume's share of the disks' bytes.
const VOLUME_SHARE: f64 = 0.4;
/// How many times smaller everything is.
const SMALLER: u32 = 2048;
const SMALL_SMALLER: u32 = 65_536;
/// Devices of which is told what they bear as cache devices.
const CACHES: [&str; 6] = [
    "intel-320-600gb",
    "samsung-850-pro-256gb",
    "intel-710-200gb",
    "intel-s3700-400gb",
    "intel-p3700-400gb",
    "samsung-pm9a3-1920gb",
];
/// Bytes of a region, which the pool writes in one go.
const REGION_BYTES: u32 = 2 << 20;
/// Years over which a cache device may wear out.
const YEARS: f64 = 5.0;

/// Loads of the source documents: name, load.
fn loads() -> [(&'static str, Load); 4] {
    let random = Load { random_share: 1.0, ..Load::default() };
    let skewed = Load { places: Places::Zipf { theta: 0.99 }, ..random.clone() };
    [
        ("synchronous 4 KiB writes, 32 outstanding", Load { fua: true, ..random }),
        (
            "4 KiB reads, 10 outstanding",
            Load { read_share: 1.0, outstanding: 10, ..skewed.clone() },
        ),
        (
            "60 % reads, 40 % synchronous writes, 3 outstanding",
            Load { read_share: 0.6, fua: true, outstanding: 3, ..skewed },
        ),
        (
            "128 KiB fill in order, 4 outstanding",
            Load { block_bytes: 128 << 10, outstanding: 4, ..Load::default() },
        ),
    ]
}

/// A pool by its parts.
struct Store {
    name: String,
    main: Page,
    drives: u32,
    group: u32,
    log: Option<Page>,
    cache: Option<Page>,
}

impl Store {
    /// All devices with their number.
    fn parts(&self) -> impl Iterator<Item = (&Page, u32)> {
        let single = self.log.iter().chain(&self.cache).map(|page| (page, 1));
        std::iter::once((&self.main, self.drives)).chain(single)
    }

    /// Price of all devices: lower end, middle, upper end. Unknown when one is.
    fn price(&self) -> Option<(f64, f64, f64)> {
        self.parts().try_fold((0.0, 0.0, 0.0), |sum, (page, count)| {
            let (low, middle, high) = page.facts.price_usd.as_ref().map(Fact::interval)?;
            let n = f64::from(count);
            Some((sum.0 + n * low, sum.1 + n * middle, sum.2 + n * high))
        })
    }

    /// Bytes that volumes can have at full size, without the pool's reserve.
    fn usable_tb(&self) -> f64 {
        let groups = self.drives / self.group;
        let data = f64::from(groups * (self.group - 1));
        data * self.main.device.offered_bytes() as f64 / 1e12
    }

    fn task(&self, context: &Context, load: &Load) -> Task {
        let smaller = context.pick(SMALLER, SMALL_SMALLER);
        let disks = catalogue::find(DISK).expect("built in").device.offered_bytes();
        let volume = disks as f64 * f64::from(DISKS) * VOLUME_SHARE / f64::from(smaller);
        let memory = MEMORY_BYTES / u64::from(smaller);
        let of = |page: &Option<Page>| page.as_ref().map(|page| page.device.clone());
        // No more than the volume's bytes twice over.
        let most = (2.0 * volume / f64::from(load.block_bytes)) as u64;
        let span = |seconds, requests: u64| Span { seconds, requests: requests.min(most) };
        Task::Hybrid(Box::new(Hybrid {
            main: self.main.device.clone(),
            drives: self.drives,
            group: self.group,
            redundancy: Layout::Raidz1,
            log: of(&self.log),
            cache: of(&self.cache),
            smaller,
            memory_bytes: if self.cache.is_some() { memory } else { 0 },
            policy: "arc".into(),
            volume_bytes: (volume as u64).next_multiple_of(1 << 20),
            load: load.clone(),
            warm: context.pick(span(3600.0, 3_000_000), span(60.0, 10_000)),
            counted: context.pick(span(120.0, 200_000), span(20.0, 2_000)),
            seed: context.seed,
        }))
    }
}

fn is_log(page: &&Page) -> bool {
    !matches!(page.device.media, MediaSpec::Disk(_))
}

fn stores(context: &Context) -> Vec<Store> {
    let find = |id| catalogue::find(id).expect("built in");
    let disks = |name: String, log: Option<&Page>, cache: Option<Page>| Store {
        name,
        main: find(DISK),
        drives: DISKS,
        group: DISKS,
        log: log.cloned(),
        cache,
    };
    let logs: Vec<&Page> = context.pages.iter().filter(is_log).collect();
    let Some(first) = logs.first() else { return Vec::new() };
    let mut stores = vec![disks("disks alone".into(), None, None)];
    for log in &logs {
        let name = match logs.len() {
            1 => "with a log".to_owned(),
            _ => format!("with a log: {}", log.device.name),
        };
        stores.push(disks(name, Some(log), None));
    }
    stores.push(disks("with log and cache".into(), Some(first), Some(find(CACHE))));
    let flash = find(FLASH);
    let disk_bytes = find(DISK).device.offered_bytes() * u64::from(DISKS);
    let drives = disk_bytes.div_ceil(flash.device.offered_bytes()) as u32;
    stores.push(Store {
        name: "all flash".into(),
        main: flash,
        drives: drives.next_multiple_of(FLASH_GROUP),
        group: FLASH_GROUP,
        log: None,
        cache: None,
    });
    stores
}

/// Devices of which is told what they bear.
fn caches(context: &Context) -> Vec<Page> {
    let ids = &CACHES[..context.pick(CACHES.len(), 2)];
    ids.iter().map(|id| catalogue::find(id).expect("built in")).collect()
}

/// The ring of regions, three times around.
fn ring(context: &Context, page: &Page) -> Task {
    let pattern = Load { block_bytes: REGION_BYTES, outstanding: 1, ..Load::default() };
    let phases = vec![Phase::SecureErase, Phase::Passes { passes: 3.0, pattern }];
    procedures::timeline(context, page, phases)
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for store in stores(context) {
        for (name, load) in loads() {
            cells.push(Cell::new(format!("{}, {name}", store.name), store.task(context, &load)));
        }
    }
    if !cells.is_empty() {
        let rings = caches(context);
        cells.extend(rings.iter().map(|p| Cell::new(p.device.name.clone(), ring(context, p))));
    }
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let (stores, caches) = (stores(context), caches(context));
    let (pools, rings) = outcomes.split_at(stores.len() * loads().len());
    let runs: Vec<Vec<&HybridOutcome>> = pools
        .chunks(loads().len())
        .map(|runs| runs.iter().map(Outcome::hybrid).collect())
        .collect();
    rate_chart(&stores, &runs, e);
    response_chart(&stores, &runs, e);
    e.tables.push(cost_table(&stores, &runs));
    e.tables.push(source_table(&stores, &runs));
    sentences(&stores, &runs, e);
    e.advice = advice(&stores, &runs);
    kept_outstanding(context.pick(0.01, 0.05), &runs, e);
    let rings: Vec<&TimelineOutcome> = rings.iter().map(Outcome::timeline).collect();
    bearing(&caches, &rings, e);
}

fn by_load(
    stores: &[Store],
    runs: &[Vec<&HybridOutcome>],
    value: fn(&HybridOutcome) -> Option<f64>,
) -> Vec<Series> {
    let of = |(store, runs): (&Store, &Vec<&HybridOutcome>)| Series {
        name: store.name.clone(),
        group: store.name.clone(),
        points: loads()
            .iter()
            .zip(runs)
            .map(|((name, _), run)| Point::named(*name, value(run)))
            .collect(),
        ..Series::default()
    };
    stores.iter().zip(runs).map(of).collect()
}

fn rate_chart(stores: &[Store], runs: &[Vec<&HybridOutcome>], e: &mut Experiment) {
    let times = stores.iter().zip(runs).flat_map(|(store, runs)| {
        let names = loads().map(|(name, _)| format!("{}, {name}", store.name));
        names.into_iter().zip(runs.iter().map(|run| run.responses))
    });
    e.charts.push(Chart {
        id: "hybrid-rates".into(),
        title: "Requests a second by load".into(),
        caption: "Logarithmic: disks and flash are orders of magnitude apart.".into(),
        kind: ChartKind::Row,
        x: Axis::linear("Load", ""),
        y: Axis::log("Requests", "1/s"),
        series: by_load(stores, runs, |run| Some(run.iops)),
        responses: response_table("Of the requests that count.", times),
        ..Chart::default()
    });
}

/// The percentile of whatever the load has: reads where it has any.
fn slow(run: &HybridOutcome) -> Option<f64> {
    let times = &run.responses;
    times.reads.at_ms[2].or(times.writes.at_ms[2])
}

fn response_chart(stores: &[Store], runs: &[Vec<&HybridOutcome>], e: &mut Experiment) {
    e.charts.push(Chart {
        id: "hybrid-p99".into(),
        title: "Response that 99 % do not exceed".into(),
        caption: "Of reads where the load has reads, otherwise of writes.".into(),
        kind: ChartKind::Row,
        x: Axis::linear("Load", ""),
        y: Axis::log("Response", "ms"),
        series: by_load(stores, runs, slow),
        ..Chart::default()
    });
}

fn interval((low, middle, high): (f64, f64, f64)) -> TableCell {
    if low < high {
        TableCell::text(format!("{} to {}", figure(low), figure(high)))
    } else {
        TableCell::number(middle)
    }
}

/// Watts of the pool's devices, most of all loads.
fn most_watts(runs: &[&HybridOutcome]) -> f64 {
    runs.iter().map(|run| run.watts).fold(0.0, f64::max)
}

fn cost_table(stores: &[Store], runs: &[Vec<&HybridOutcome>]) -> Table {
    let row = |(store, runs): (&Store, &Vec<&HybridOutcome>)| {
        let parts: Vec<String> =
            store.parts().map(|(page, n)| format!("{n} × {}", page.device.name)).collect();
        let (price, watts) = (store.price(), most_watts(runs));
        let per = |value: f64| TableCell::maybe(price.map(|(_, middle, _)| value / middle));
        let tb = store.usable_tb();
        vec![
            TableCell::text(store.name.as_str()),
            TableCell::text(parts.join(", ")),
            TableCell::number(tb),
            price.map_or_else(TableCell::unknown, interval),
            TableCell::maybe(price.map(|(_, middle, _)| middle / tb)),
            TableCell::number(watts),
            per(runs[0].iops),
            per(runs[1].iops),
            TableCell::number(runs[0].iops / watts),
            TableCell::number(runs[1].iops / watts),
        ]
    };
    let mut columns = vec![Column::new("Pool"), Column::new("Devices")];
    columns.push(Column::with_unit("Usable, without parity", "TB"));
    columns.push(Column::with_unit("Price at launch", "$"));
    columns.push(Column::with_unit("A usable terabyte", "$"));
    columns.push(Column::with_unit("Power, most of all loads", "W"));
    columns.push(Column::with_unit("Synchronous writes for a dollar", "1/(s $)"));
    columns.push(Column::with_unit("Reads for a dollar", "1/(s $)"));
    columns.push(Column::with_unit("Synchronous writes for a watt", "1/(s W)"));
    columns.push(Column::with_unit("Reads for a watt", "1/(s W)"));
    Table {
        id: "hybrid-cost".into(),
        title: "Price and power".into(),
        caption:
            "Devices only. Prices are of different years, as the catalogue has them; power is \
                  assumed for most devices (docs/device-models.md)."
                .into(),
        columns,
        rows: stores.iter().zip(runs).map(row).collect(),
    }
}

/// Where reads came from.
fn source_table(stores: &[Store], runs: &[Vec<&HybridOutcome>]) -> Table {
    let mut rows = Vec::new();
    for (store, runs) in stores.iter().zip(runs) {
        for ((name, _), run) in loads().iter().zip(runs).filter(|(_, run)| run.read_blocks > 0) {
            let share =
                |blocks: u64| TableCell::number(100.0 * blocks as f64 / run.read_blocks as f64);
            rows.push(vec![
                TableCell::text(store.name.as_str()),
                TableCell::text(*name),
                share(run.memory_blocks),
                share(run.cache_blocks),
                TableCell::number(run.main_reads as f64 / run.seconds),
            ]);
        }
    }
    let mut columns = vec![Column::new("Pool"), Column::new("Load")];
    columns.push(Column::with_unit("Blocks from memory", "%"));
    columns.push(Column::with_unit("From the cache device", "%"));
    columns.push(Column::with_unit("Reads of data devices", "1/s"));
    Table {
        id: "hybrid-sources".into(),
        title: "Where reads are answered".into(),
        caption: "The rest was read from the data devices, or was still in memory to be written."
            .into(),
        columns,
        rows,
    }
}

/// The pool with log and cache, and the one of flash alone: the last two.
fn pair<'a>(
    stores: &'a [Store],
    runs: &'a [Vec<&'a HybridOutcome>],
    from_end: usize,
) -> (&'a Store, &'a [&'a HybridOutcome]) {
    let at = stores.len() - from_end;
    (&stores[at], &runs[at])
}

fn sentences(stores: &[Store], runs: &[Vec<&HybridOutcome>], e: &mut Experiment) {
    let (alone, logged) = (&runs[0], &runs[1]);
    let (_, hybrid) = pair(stores, runs, 2);
    let (_, flash) = pair(stores, runs, 1);
    let text = format!(
        "Synchronous 4 KiB writes: {} a second on disks alone, {} with {} as the log device, {} on \
         flash drives alone.",
        figure(alone[0].iops),
        figure(logged[0].iops),
        stores[1].log.as_ref().map_or("a log", |log| log.device.name.as_str()),
        figure(flash[0].iops),
    );
    say(e, Basis::Predicted, text);
    let text = format!(
        "4 KiB reads by Zipf's law: {} a second from disks alone, {} with memory and a cache \
         device, which answer {} of them, {} from flash drives alone.",
        figure(alone[1].iops),
        figure(hybrid[1].iops),
        percent(hybrid[1].hit_share()),
        figure(flash[1].iops),
    );
    say(e, Basis::Predicted, text);
    let watts = |runs: &[&HybridOutcome]| figure(most_watts(runs));
    let text = format!(
        "The devices draw {} W (disks alone), {} W (with log and cache) and {} W (all flash).",
        watts(alone),
        watts(hybrid),
        watts(flash)
    );
    say(e, Basis::Input, text);
}

fn advice(stores: &[Store], runs: &[Vec<&HybridOutcome>]) -> Vec<Finding> {
    let (hybrid, hybrid_runs) = pair(stores, runs, 2);
    let (flash, flash_runs) = pair(stores, runs, 1);
    let per_tb = |store: &Store| store.price().map(|(_, middle, _)| middle / store.usable_tb());
    let (Some(hybrid_tb), Some(flash_tb)) = (per_tb(hybrid), per_tb(flash)) else {
        return Vec::new();
    };
    let text = |name: &str, condition: &str, tb: f64, runs: &[&HybridOutcome]| {
        format!(
            "Choose {name} if {condition}: {} $ for a usable terabyte, {} synchronous writes and \
             {} reads a second.",
            figure(tb),
            figure(runs[0].iops),
            figure(runs[1].iops),
        )
    };
    vec![
        Finding {
            text: text(
                "disks with a log and a cache device",
                "capacity is what the money goes into and most reads go to few blocks",
                hybrid_tb,
                hybrid_runs,
            ),
            basis: Basis::Predicted,
        },
        Finding {
            text: text("flash drives alone", "the rate of reads decides", flash_tb, flash_runs),
            basis: Basis::Predicted,
        },
    ]
}

/// Little's law at the volume: clients that wait for each request keep as many outstanding as there
/// are clients, but for the last ones.
fn kept_outstanding(tolerance: f64, runs: &[Vec<&HybridOutcome>], e: &mut Experiment) {
    let ratios = runs.iter().flat_map(|runs| {
        loads()
            .into_iter()
            .zip(runs)
            .map(|((_, load), run)| run.outstanding / f64::from(load.depth()))
    });
    let Some(worst) = ratios.max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs())) else {
        return;
    };
    e.checks.push(Check::relative(
        "Little's law: rate times response over the clients, worst run",
        "",
        (1.0, worst),
        tolerance,
        Basis::Invariant,
        "Little 1961; each client has one request outstanding until the load ends",
    ));
}

/// Capacities a day for [`YEARS`] that the cycles of the flash bear.
fn borne_dwpd(device: &DeviceSpec, amplification: f64) -> Option<f64> {
    let MediaSpec::Flash(flash) = &device.media else { return None };
    let bytes = flash.raw_bytes() as f64 * flash.endurance.cycles_mean / amplification;
    Some(bytes / device.offered_bytes() as f64 / (YEARS * 365.0))
}

fn cleans_the_emptiest(device: &DeviceSpec) -> bool {
    matches!(&device.media, MediaSpec::Flash(flash) if flash.ftl.policy == CleaningPolicy::Greedy)
}

/// What devices bear as cache devices.
fn bearing(caches: &[Page], rings: &[&TimelineOutcome], e: &mut Experiment) {
    let mut rows = Vec::new();
    for (page, ring) in caches.iter().zip(rings) {
        let borne = borne_dwpd(&page.device, ring.amplification);
        let rated = page
            .rated_bytes()
            .map(|bytes| bytes / page.device.offered_bytes() as f64 / (YEARS * 365.0));
        let source = page.provenance_of("media.flash.endurance.cycles_mean");
        rows.push(vec![
            TableCell::text(page.device.name.as_str()),
            TableCell::number(ring.amplification),
            TableCell::maybe(borne).noted(source.map_or("", |p| p.source.as_str())),
            TableCell::maybe(rated),
        ]);
    }
    let clean = caches.iter().zip(rings).filter(|(page, _)| cleans_the_emptiest(&page.device));
    let worst = clean.map(|(_, ring)| ring.amplification).fold(1.0, f64::max);
    e.checks.push(Check::relative(
        "Amplification of a cache device's regions, worst device that cleans the emptiest block",
        "",
        (1.0, worst),
        0.05,
        Basis::Formula,
        "blocks overwritten in the order in which they were written leave nothing to move",
    ));
    let least = caches.iter().zip(rings).filter_map(|(page, ring)| {
        borne_dwpd(&page.device, ring.amplification).map(|dwpd| (page, dwpd))
    });
    if let Some((page, dwpd)) = least.min_by(|a, b| a.1.total_cmp(&b.1)) {
        let text = format!(
            "As a cache device, the least that one of these bears for {YEARS} years is {} drive \
             writes a day ({}), by the cycles assumed for its flash.",
            figure(dwpd),
            page.device.name
        );
        say(e, Basis::Input, text);
    }
    let mut columns = vec![Column::new("Device"), Column::new("Amplification of regions")];
    columns.push(Column::with_unit("Borne, as a cache device", "drive writes a day"));
    columns.push(Column::with_unit("Rated by its vendor", "drive writes a day"));
    e.tables.push(Table {
        id: "cache-dwpd".into(),
        title: "What devices bear as cache devices".into(),
        caption: format!(
            "Regions of 2 MiB in a ring, three times around: bytes programmed for each byte \
             written. Borne: the cycles of the flash (assumed, ± 25 %) times its raw bytes over \
             that, for {YEARS} years. The vendor's rating is for random writes. The models of the \
             Intel 320 and 710 clean blocks at random, which was fitted to random writes; regions \
             cost them as much."
        ),
        columns,
        rows,
    });
}

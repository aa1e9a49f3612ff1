//! `forebay pool iostat`.

use std::collections::BTreeMap;

use forebay_units::Nanos;

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::Listing;
use crate::control::{Action, Reply, Sample};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::{PoolAccess, PoolHandle};
use crate::render;
use crate::terminal::print;

/// Switches of the command.
#[derive(Clone, Copy)]
pub struct Options {
    /// How to print.
    pub listing: Listing,
    /// Also every device.
    pub verbose: bool,
    /// Leave out the average since import.
    pub skip_first: bool,
    /// Print the header once only.
    pub header_once: bool,
}

/// Pools, seconds between reports, and how many reports.
#[derive(Debug, PartialEq)]
pub struct Plan {
    /// Pools; all when empty.
    pub pools: Vec<String>,
    /// Between reports; `None` for one report.
    pub interval: Option<Nanos>,
    /// How many reports; `None` for no end.
    pub reports: Option<u64>,
}

/// Reads `[POOL]... [SECONDS [COUNT]]`: numbers at the end are not pools, as in zpool.
pub fn plan(words: &[String]) -> Result<Plan, Failure> {
    // Rust reads 'nan' and 'inf' as numbers; both may be pools.
    let is_number = |word: &&String| word.starts_with(|c: char| !c.is_ascii_alphabetic());
    let number = |word: &String| Some(word).filter(is_number)?.parse::<f64>().ok();
    let mut pools = words.to_vec();
    let mut numbers = Vec::new();
    while numbers.len() < 2 {
        let Some(value) = pools.last().and_then(number) else { break };
        numbers.insert(0, value);
        pools.pop();
    }
    let Some(&seconds) = numbers.first() else {
        return Ok(Plan { pools, interval: None, reports: Some(1) });
    };
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(Failure::usage(format!(
            "an interval of {seconds} seconds is not between 0.01 and 86400"
        )));
    }
    let reports = match numbers.get(1) {
        None => None,
        Some(&count) if count >= 1.0 && count.fract() == 0.0 => Some(count as u64),
        Some(count) => {
            return Err(Failure::usage(format!("{count} is not a number of reports")));
        }
    };
    let interval = Some(Nanos((seconds * 1e9) as u64));
    Ok(Plan { pools, interval, reports })
}

/// Prints reports, and returns the last one.
pub async fn iostat(
    access: &PoolAccess,
    words: &[String],
    options: Options,
) -> Result<Outcome, Failure> {
    let Plan { pools, interval, reports } = plan(words)?;
    let names = access.names(&pools)?;
    if names.is_empty() {
        let listing = options.listing;
        return Ok(Outcome::text(match (listing.json, listing.scripted) {
            (true, _) => render::iostat_json(&[]),
            (_, true) => String::new(),
            _ => "no pools available\n".to_owned(),
        }));
    }
    let idle: Vec<String> =
        names.iter().filter(|name| access.server_of(name).is_none()).cloned().collect();
    if let Some(idle) = idle.first().filter(|_| interval.is_some()) {
        let message = format!("'{idle}' is not being served: there is no traffic to watch");
        return Err(Failure::new(ErrorCode::PoolNotServed, message)
            .with_hint(format!("start 'forebay serve {idle}', or leave the interval out")));
    }
    let mut handles: Vec<PoolHandle> = Vec::new();
    for name in &names {
        handles.push(access.open(name).await?);
    }
    for name in &idle {
        log::notice(&format!("'{name}' is not being served: no client reads or writes it"));
    }
    let outcome = repeat(&handles, interval, reports, options, &idle).await;
    let mut closed = Ok(());
    for handle in handles {
        closed = closed.and(handle.close().await);
    }
    let last = outcome?;
    closed.map(|()| Outcome::text(last))
}

async fn repeat(
    handles: &[PoolHandle],
    interval: Option<Nanos>,
    reports: Option<u64>,
    options: Options,
    idle: &[String],
) -> Result<String, Failure> {
    let mut before: BTreeMap<String, Sample> = BTreeMap::new();
    if options.skip_first && interval.is_some() {
        before = samples(handles).await?;
    }
    let mut done: u64 = 0;
    let mut next = forebay_rt::now();
    loop {
        if let Some(interval) = interval.filter(|_| done > 0 || options.skip_first) {
            next = next + interval;
            forebay_rt::sleep_until(next).await;
        }
        let now = samples(handles).await?;
        // The traffic of an idle pool is what this command did to open it: it is left out.
        before.extend(idle.iter().filter_map(|name| Some((name.clone(), now.get(name)?.clone()))));
        let text = report_text(&before, &now, options, done);
        before = now;
        done += 1;
        if reports == Some(done) {
            return Ok(text);
        }
        print(&text)?;
    }
}

async fn samples(handles: &[PoolHandle]) -> Result<BTreeMap<String, Sample>, Failure> {
    let mut out = BTreeMap::new();
    for handle in handles {
        let sample = *reply_as!(handle.ask(Action::Sample).await, Reply::Sample)?;
        out.insert(sample.status.name.clone(), sample);
    }
    Ok(out)
}

fn report_text(
    before: &BTreeMap<String, Sample>,
    now: &BTreeMap<String, Sample>,
    options: Options,
    reports_before: u64,
) -> String {
    /// Reports of one line under one header: a screen of them, as in zpool.
    const REPORTS_PER_HEADER: u64 = 22;
    let mut rows = Vec::new();
    for (name, sample) in now {
        rows.extend(render::iostat_rows(before.get(name), sample, options.verbose));
    }
    let listing = options.listing;
    if listing.json {
        return render::iostat_json(&rows);
    }
    let mut text = String::new();
    let several = rows.len() > 1;
    let due = reports_before == 0
        || (!options.header_once && (several || reports_before % REPORTS_PER_HEADER == 0));
    if due && !listing.scripted {
        text.push_str(&render::iostat_header(&rows));
    }
    text.push_str(&render::iostat_text(&rows, listing.scripted, listing.exact));
    text
}

#[cfg(test)]
mod tests;

//! The plan of a qualification, before it is run.

use forebay_qualify::{Plan, Sync, Threshold};
use forebay_units::format_bytes;
use serde::Serialize;

use super::document;
use crate::clock;

/// Length, load, limits of the verdict, bytes written; a line each.
#[must_use]
pub fn plan_text(plan: &Plan, rated_bytes: Option<f64>) -> String {
    let length = clock::duration(plan.limit().as_secs_f64().ceil() as u64);
    let what = match plan.procedure {
        Some(procedure) => format!("the procedure {}", procedure.name()),
        None => format!("{} profile for {}", plan.profile.name(), plan.purpose.name()),
    };
    let what = match plan.only {
        Some(part) => format!("{what}, only its part '{}'", part.name()),
        None => what,
    };
    let steps = plan.steps.len();
    let mut text = format!("plan         {what}: {steps} steps, {length} at most\n");
    if is_judged(plan) {
        let limits: Vec<String> = plan.purpose.thresholds().iter().map(threshold).collect();
        text.push_str(&format!("load         {}\n", load(plan)));
        text.push_str(&format!("limits       {}\n", limits.join("; ")));
    }
    let written = match plan.max_bytes() {
        0 => "nothing".to_owned(),
        bytes => format!("{} at most", format_bytes(bytes)),
    };
    let span = format_bytes(plan.span_bytes);
    text.push_str(&format!("writes       {written}, within the first {span}\n"));
    if let Some(percent) = rated_percent(plan, rated_bytes) {
        text.push_str(&format!("endurance    {percent:.3} % of the rated writes at most\n"));
    }
    text
}

/// Whether the plan has a verdict, and so a load and limits of a purpose.
fn is_judged(plan: &Plan) -> bool {
    plan.procedure.is_none() && !plan.read_only
}

/// The durable writes that decide.
fn load(plan: &Plan) -> String {
    let purpose = plan.purpose;
    let size = format_bytes(u64::from(purpose.block_bytes()));
    let places = match purpose.random_percent() {
        0 => "in order".to_owned(),
        percent => format!("{percent} % at random places"),
    };
    let sync = match purpose.sync() {
        Sync::Flush => "write + flush",
        Sync::Fua => "FUA",
        Sync::None => "nothing",
    };
    format!("writes of {size}, {places}, durable by {sync}, at QD1 to QD64")
}

fn threshold(limit: &Threshold) -> String {
    let bound = if limit.figure.wants_more() { "at least" } else { "at most" };
    let (figure, unit) = (limit.figure.name(), limit.figure.unit());
    format!("{figure} at QD{} {bound} {} {unit}", limit.queue_depth, limit.limit)
}

/// Percent of the rated writes that the plan may take.
fn rated_percent(plan: &Plan, rated_bytes: Option<f64>) -> Option<f64> {
    Some(plan.max_bytes() as f64 / rated_bytes? * 100.0)
}

/// The plan as JSON. Nothing was done.
#[must_use]
pub fn plan_json(target: &str, plan: &Plan, rated_bytes: Option<f64>) -> String {
    #[derive(Serialize)]
    struct Limit {
        figure: &'static str,
        unit: &'static str,
        queue_depth: u32,
        is_least: bool,
        limit: f64,
        source: &'static str,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        target: &'a str,
        max_seconds: f64,
        max_bytes: u64,
        max_rated_percent: Option<f64>,
        limits: Vec<Limit>,
        plan: &'a Plan,
    }
    let thresholds = if is_judged(plan) { plan.purpose.thresholds() } else { &[] };
    let limits = thresholds.iter().map(|limit| Limit {
        figure: limit.figure.name(),
        unit: limit.figure.unit(),
        queue_depth: limit.queue_depth,
        is_least: limit.figure.wants_more(),
        limit: limit.limit,
        source: limit.source,
    });
    let body = Body {
        target,
        max_seconds: plan.limit().as_secs_f64(),
        max_bytes: plan.max_bytes(),
        max_rated_percent: rated_percent(plan, rated_bytes),
        limits: limits.collect(),
        plan,
    };
    document("qualify", body)
}

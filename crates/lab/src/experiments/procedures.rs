//! Load procedures of the talks, as timelines.

use super::Context;
use crate::bench::Sample;
use crate::catalogue::Page;
use crate::load::{Content, Load};
use crate::task::Task;
use crate::timeline::{Phase, Timeline, TimelineOutcome};
use forebay_flash::MediaSpec;

/// How a load of procedure A differs from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Share of random places.
    pub random_share: f64,
    /// Random places are multiples of this.
    pub align_bytes: u32,
    /// Where the partition starts.
    pub offset_bytes: u64,
    /// What is written.
    pub content: Content,
}

impl Shape {
    /// 4 KiB aligned pseudo-random data from the start of the device.
    pub(crate) const fn random(random_share: f64) -> Self {
        Self { random_share, align_bytes: 4096, offset_bytes: 0, content: Content::PseudoRandom }
    }
}

/// The three mixes and their names.
pub(crate) const MIXES: [(f64, &str); 3] =
    [(0.0, "sequential"), (0.5, "50 % random"), (1.0, "random")];

/// Minutes of load, of rest, and of load again in procedure A.
pub(crate) const A_MINUTES: f64 = 60.0;
/// Minutes of load in procedure B.
pub(crate) const B_MINUTES: f64 = 80.0;

/// Procedure A (2010): secure erase; an hour of 4 KiB writes with 32 outstanding on each of two
/// workers; an hour of rest; an hour of the same load.
pub(crate) fn a(context: &Context, page: &Page, shape: Shape) -> Task {
    let pattern = Load {
        random_share: shape.random_share,
        align_bytes: shape.align_bytes,
        offset_bytes: shape.offset_bytes,
        content: shape.content,
        outstanding: 32,
        workers: 2,
        ..Load::default()
    };
    let load = Phase::Load { minutes: A_MINUTES, pattern };
    let phases = vec![Phase::SecureErase, load.clone(), Phase::Idle { minutes: A_MINUTES }, load];
    timeline(context, page, phases)
}

/// Procedure B (2012): secure erase; 80 minutes of 4 KiB random writes, 32 outstanding.
pub(crate) fn b(context: &Context, page: &Page) -> Task {
    let pattern = Load { random_share: 1.0, ..Load::default() };
    timeline(context, page, vec![Phase::SecureErase, Phase::Load { minutes: B_MINUTES, pattern }])
}

/// The state a device of any size ends in: filled once in order, then written at random, 32
/// outstanding, as many bytes as twice its capacity. Media that remember nothing take half an hour
/// of it. A sample each ten minutes.
pub(crate) fn steady(context: &Context, page: &Page) -> Task {
    let pattern = Load { random_share: 1.0, ..Load::default() };
    let phases = match page.device.media {
        MediaSpec::Flash(_) => {
            let fill = Phase::Fill { block_bytes: 128 << 10 };
            vec![Phase::SecureErase, fill, Phase::Passes { passes: 2.0, pattern }]
        }
        MediaSpec::Dram(_) | MediaSpec::Disk(_) => {
            vec![Phase::SecureErase, Phase::Load { minutes: 30.0, pattern }]
        }
    };
    match timeline(context, page, phases) {
        Task::Timeline(t) => Task::Timeline(Timeline { sample_minutes: 10.0, ..t }),
        other => other,
    }
}

/// The mean over the last fifth of a [`steady`] run.
pub(crate) fn steady_end(outcome: &TimelineOutcome) -> Sample {
    let length = outcome.last_load().map_or(0.0, |p| p.to_minute - p.from_minute);
    let end = outcome.sustained((length / 5.0).max(10.0));
    // A device so fast that it is done before the first sample is due.
    if end.iops > 0.0 { end } else { outcome.last_load().and_then(|p| p.whole).unwrap_or_default() }
}

pub(crate) fn timeline(context: &Context, page: &Page, phases: Vec<Phase>) -> Task {
    Task::Timeline(Timeline {
        device: page.device.clone(),
        scale: context.scale_of(&page.device),
        seed: context.seed,
        sample_minutes: 1.0,
        phases,
    })
}

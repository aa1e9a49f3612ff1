//! Findings of a power-cut test as text.

use forebay_qualify::Sync;
use forebay_qualify::power_cut::{CutFindings, Tally};

/// What a cycle left: a line, the classes, the first damaged places.
#[must_use]
pub fn cut_findings_text(cycle: u64, is_cut: bool, found: &CutFindings) -> String {
    /// More lines do not fit a screen.
    const MAX_LINES: usize = 10;
    let how = if is_cut { "power cut" } else { "no power cut" };
    let name = format!("cycle {cycle}");
    let mut text =
        format!("{name:<13}{how}; {} places checked, {} damaged\n", found.checked, found.damaged());
    for (damage, count) in &found.damages {
        text.push_str(&format!("  {:<11}{count}\n", damage.name()));
    }
    if found.unserializable > 0 {
        let lost = found.unserializable;
        text.push_str(&format!("  {lost} of them were overtaken by later records\n"));
    }
    for loss in found.losses.iter().take(MAX_LINES) {
        let by = if loss.sync == Sync::Fua { "FUA" } else { "flush" };
        text.push_str(&format!(
            "  at {}: {}, record {} of writer {}, by {by}\n",
            loss.offset_bytes,
            loss.damage.name(),
            loss.sequence,
            loss.writer
        ));
    }
    text
}

/// All verified cycles, and what they prove.
#[must_use]
pub fn cut_tally_text(tally: &Tally) -> String {
    let mut text = format!("power cuts   {} verified, {} lost data\n", tally.cuts, tally.failed);
    if tally.not_cut > 0 {
        let (others, bad) = (tally.not_cut, tally.not_cut_failed);
        text.push_str(&format!("other ends   {others}, {bad} lost data\n"));
    }
    let percent = |share: f64| share * 100.0;
    match tally.bound() {
        Some(bound) if tally.failed == 0 => text.push_str(&format!(
            "bound        a cut loses data with a probability below {:.3} % (95 % confidence)\n",
            percent(bound.high)
        )),
        Some(bound) => text.push_str(&format!(
            "bound        a cut loses data with a probability of {:.2} to {:.2} % (95 % \
             confidence)\n",
            percent(bound.low),
            percent(bound.high)
        )),
        None => {}
    }
    text
}

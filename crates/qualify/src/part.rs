//! Parts of a plan, for operators who want one of them alone.

use serde::{Deserialize, Serialize};

use crate::StepKind;

/// A part of the usual plan. The fill goes before each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Plain writes, and flushes behind them.
    Flushes,
    /// What is written.
    Content,
    /// On the 4 KiB grid and beside it.
    Alignment,
    /// Sustained writes.
    Sustained,
    /// Rounds to the steady state, rest, and what comes back.
    Steady,
    /// Durable writes.
    Durable,
    /// Reads beside writes.
    Mixed,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Flushes,
        Self::Content,
        Self::Alignment,
        Self::Sustained,
        Self::Steady,
        Self::Durable,
        Self::Mixed,
    ];

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flushes => "flushes",
            Self::Content => "content",
            Self::Alignment => "alignment",
            Self::Sustained => "sustained",
            Self::Steady => "steady",
            Self::Durable => "durable",
            Self::Mixed => "mixed",
        }
    }

    /// Whether a step is of this part, or goes before each.
    pub(crate) fn has(self, kind: StepKind) -> bool {
        match kind {
            StepKind::PlainWrites | StepKind::FlushCost { .. } => self == Self::Flushes,
            StepKind::Content { .. } => self == Self::Content,
            StepKind::Alignment { .. } => self == Self::Alignment,
            StepKind::Sustained { .. } => self == Self::Sustained,
            StepKind::SteadyState { .. } | StepKind::Idle | StepKind::Recovery => {
                self == Self::Steady
            }
            StepKind::SyncWrites { .. } => self == Self::Durable,
            StepKind::MixedReads { .. } => self == Self::Mixed,
            _ => true,
        }
    }
}

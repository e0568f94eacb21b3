//! Where the time of a step went: what each compiled function cost.

use std::time::Duration;

/// What an engine ran between two looks at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The compiled functions that ran, the costliest first.
    pub dispatches: Vec<DispatchCost>,
    /// From the first to the last dispatch of every submission, added up: what lies between
    /// dispatches included.
    pub submitted: Duration,
    /// Dispatches that ran but are not counted here.
    pub dropped: u64,
}

/// What one compiled function cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatchCost {
    /// The compiler's name of it.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// From the start to the end of each call, added up.
    pub elapsed: Duration,
    /// What the workers spent in it, added up: at most `elapsed` times their number.
    pub busy: Duration,
}

#[cfg(feature = "iree")]
impl From<iree_rt::Profile> for Profile {
    fn from(profile: iree_rt::Profile) -> Self {
        let cost = |cost: iree_rt::DispatchCost| DispatchCost {
            name: cost.name,
            calls: cost.calls,
            elapsed: cost.elapsed,
            busy: cost.busy,
        };
        Self {
            dispatches: profile.dispatches.into_iter().map(cost).collect(),
            submitted: profile.submitted,
            dropped: profile.dropped,
        }
    }
}

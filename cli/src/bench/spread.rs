//! Median and range of repeated measurements.

use serde::{Deserialize, Serialize};

/// The middle of some measurements and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or halfway between the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let (left, right) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(left, right), min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([2.0]), Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        let odd = Spread::of([9.0, 1.0, 2.0]);
        assert_eq!(odd, Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        let even = Spread::of([4.0, 1.0, 100.0, 2.0]);
        assert_eq!(even, Some(Spread { median: 3.0, min: 1.0, max: 100.0 }));
    }
}

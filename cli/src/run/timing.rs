//! Timing one thing again and again.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Times that are not counted, first.
    pub warm_up: u32,
    /// Exactly as many times; `None`: for `at_least`, and no less than once.
    pub iterations: Option<u32>,
    /// Of all times together.
    pub at_least: Duration,
}

/// What the times of single iterations come to, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Times {
    /// How many.
    pub iterations: usize,
    /// The shortest.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The sum over the number.
    pub mean: f64,
    /// Standard deviation (of the sample).
    pub stddev: f64,
    /// 90 of 100 are at most this.
    pub p90: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Does `work` as `plan` says.
///
/// # Errors
///
/// Those of `work`.
pub fn measure<E>(plan: &Plan, mut work: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
    for _ in 0..plan.warm_up {
        work()?;
    }
    let mut seconds = Vec::new();
    let start = Instant::now();
    loop {
        let before = Instant::now();
        work()?;
        let after = Instant::now();
        seconds.push((after - before).as_secs_f64());
        let enough = match plan.iterations {
            Some(iterations) => seconds.len() >= iterations as usize,
            None => after - start >= plan.at_least,
        };
        if enough {
            return Ok(Times::of(seconds));
        }
    }
}

impl Times {
    /// Of at least one time.
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len();
        let mean = seconds.iter().sum::<f64>() / count as f64;
        let squares: f64 = seconds.iter().map(|it| (it - mean).powi(2)).sum();
        // The smallest that so many are no greater than.
        let percentile = |percent: usize| seconds[(count * percent).div_ceil(100).max(1) - 1];
        Self {
            iterations: count,
            min: seconds[0],
            median: f64::midpoint(seconds[(count - 1) / 2], seconds[count / 2]),
            mean,
            stddev: (squares / (count.max(2) - 1) as f64).sqrt(),
            p90: percentile(90),
            p99: percentile(99),
            max: seconds[count - 1],
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let rows = [
            ("min", self.min),
            ("median", self.median),
            ("mean", self.mean),
            ("stddev", self.stddev),
            ("p90", self.p90),
            ("p99", self.p99),
            ("max", self.max),
        ];
        let rows = rows.map(|(name, seconds)| format!("{name:<12} {}\n", time(seconds)));
        format!(
            "{:<12} {}\n{}{:<12} {:.1}\n",
            "calls",
            self.iterations,
            rows.concat(),
            "calls/s",
            1.0 / self.mean
        )
    }
}

/// With a unit in which it is at least 1.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.3} µs", s * 1e6),
        s => format!("{:.0} ns", s * 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        let times = Times::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((times.min, times.median, times.max), (1.0, 50.5, 100.0));
        assert_eq!((times.p90, times.p99, times.iterations), (90.0, 99.0, 100));
        assert!((times.mean - 50.5).abs() < 1e-9 && (times.stddev - 29.011).abs() < 1e-3);
        let one = Times::of(vec![2.0]);
        assert_eq!((one.median, one.p99, one.stddev), (2.0, 2.0, 0.0));
    }

    #[test]
    fn as_often_as_planned() {
        let count = |plan: &Plan| {
            let mut calls = 0;
            let work = || {
                calls += 1;
                Ok::<_, ()>(())
            };
            (measure(plan, work).unwrap().iterations, calls)
        };
        let at_least = Duration::ZERO;
        assert_eq!(count(&Plan { warm_up: 2, iterations: Some(3), at_least }), (3, 5));
        assert_eq!(count(&Plan { warm_up: 0, iterations: None, at_least }), (1, 1));
        let mut calls = 0;
        let plan = Plan { warm_up: 0, iterations: Some(5), at_least };
        let failed = measure(&plan, || {
            calls += 1;
            if calls == 2 { Err("broken") } else { Ok(()) }
        });
        assert_eq!(failed.unwrap_err(), "broken");
    }

    #[test]
    fn units() {
        let shown = [2.5, 0.0025, 2.5e-6, 2.5e-8].map(time);
        assert_eq!(shown, ["2.500 s", "2.500 ms", "2.500 µs", "25 ns"]);
    }
}

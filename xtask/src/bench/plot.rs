//! Draws [`Scaling`] as an SVG of four panels.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;

use super::scaling::Scaling;

const SIZE: (u32, u32) = (960, 640);
/// The two programs: blue and vermilion tell apart for everybody (Okabe and Ito, 2008).
const COLOURS: [(&str, RGBColor); 2] =
    [("iree-llm", RGBColor(0, 114, 178)), ("llama.cpp", RGBColor(213, 94, 0))];

/// Points of one line.
type Line = [(usize, f64)];

/// Writes the plot to `path`; `title` says what was measured where.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(path: &Path, scaling: &Scaling, title: &str) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let failure = |error| anyhow!("{}: {error}", path.display());
    root.fill(&WHITE).map_err(failure)?;
    let (head, body) = root.split_vertically(34);
    let style = ("sans-serif", 15).into_font().color(&BLACK);
    head.draw(&Text::new(title.to_owned(), (14, 12), style)).map_err(failure)?;
    let (ours, llama) = (&scaling.ours, &scaling.llama);
    let panels: [(&str, &str, Scale, [&Line; 2]); 4] = [
        (
            "Prompt: tokens a second",
            "tokens of the prompt",
            Scale::Even,
            [&ours.prompt, &llama.prompt],
        ),
        (
            "Single token: milliseconds",
            "tokens before it",
            Scale::Linear,
            [&ours.depth, &llama.depth],
        ),
        (
            "Prompt: tokens a second",
            "threads",
            Scale::Even,
            [&ours.prompt_threads, &llama.prompt_threads],
        ),
        (
            "Single tokens a second",
            "threads",
            Scale::Even,
            [&ours.single_threads, &llama.single_threads],
        ),
    ];
    for (area, (title, unit, scale, lines)) in body.split_evenly((2, 2)).iter().zip(panels) {
        panel(area, title, unit, scale, lines).map_err(failure)?;
    }
    root.present().map_err(failure)
}

type Failure = DrawingAreaErrorKind<std::io::Error>;

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    unit: &str,
    scale: Scale,
    lines: [&Line; 2],
) -> Result<(), Failure> {
    let points = || lines.iter().flat_map(|line| line.iter());
    let highest = points().map(|point| point.1).fold(0.0, f64::max).max(1e-9);
    let mut steps: Vec<usize> = points().map(|point| point.0).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(46)
        .build_cartesian_2d(Axis { steps: steps.clone(), scale }, 0.0..highest * 1.15)?;
    chart
        .configure_mesh()
        .x_desc(unit)
        .x_labels(steps.len())
        .y_labels(6)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    for ((name, colour), line) in COLOURS.into_iter().zip(lines) {
        chart
            .draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(line.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 12))
        .draw()
}

/// How far whole numbers lie from each other.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// All at the same distance: lengths that grow by factors.
    Even,
    /// As they are, from 0.
    Linear,
}

/// An axis with a label at each of its numbers, where there is room.
#[derive(Clone)]
struct Axis {
    /// Ascending.
    steps: Vec<usize>,
    scale: Scale,
}

impl Axis {
    /// Where `value` lies, from 0 to 1.
    fn share(&self, value: usize) -> f64 {
        let most = self.steps.last().copied().unwrap_or(1).max(1) as f64;
        match self.scale {
            Scale::Linear => 0.03 + 0.94 * value as f64 / most,
            Scale::Even => {
                let at = self.steps.partition_point(|&step| step < value) as f64;
                (at + 0.5) / self.steps.len().max(1) as f64
            }
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = usize;

    fn map(&self, value: &usize, limit: (i32, i32)) -> i32 {
        limit.0 + (self.share(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<usize> {
        let mut labelled: Vec<usize> = Vec::new();
        for &step in &self.steps {
            if labelled.last().is_none_or(|&last| self.share(step) - self.share(last) > 0.08) {
                labelled.push(step);
            }
        }
        labelled
    }

    fn range(&self) -> Range<usize> {
        self.steps.first().copied().unwrap_or(0)..self.steps.last().copied().unwrap_or(0)
    }
}

impl plotters::coord::ranged1d::ValueFormatter<usize> for Axis {
    fn format(value: &usize) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::scaling::tests_of_scaling::example;
    use super::*;

    #[test]
    fn every_point_is_drawn_and_labelled() {
        let path = std::env::temp_dir().join(format!("scaling-{}.svg", std::process::id()));
        let scaling = example();
        write(&path, &scaling, "bf16 <2 threads>").unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let of = |curves: &super::super::scaling::Curves| {
            let (a, b) = (curves.prompt.len(), curves.depth.len());
            a + b + curves.prompt_threads.len() + curves.single_threads.len()
        };
        assert_eq!(svg.matches("<circle").count(), of(&scaling.ours) + of(&scaling.llama));
        for label in ["iree-llm", "llama.cpp", "8192", "tokens of the prompt", "threads"] {
            assert!(svg.contains(label), "{label}");
        }
        assert!(!svg.contains("<2"), "text is escaped");
    }

    #[test]
    fn numbers_lie_evenly_or_where_they_belong() {
        let steps = vec![0, 64, 4096, 8192];
        let at = |scale| {
            let axis = Axis { steps: steps.clone(), scale };
            steps.iter().map(|step| axis.map(step, (0, 1000))).collect::<Vec<_>>()
        };
        assert_eq!(at(Scale::Even), [125, 375, 625, 875]);
        assert_eq!(at(Scale::Linear), [30, 37, 500, 970]);
        let axis = Axis { steps: steps.clone(), scale: Scale::Linear };
        assert_eq!(axis.key_points(10), [0, 4096, 8192], "no room for 64");
    }
}

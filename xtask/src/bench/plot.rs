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
    let panels: [(&str, &str, [&Line; 2]); 4] = [
        ("Prompt: tokens a second", "tokens of the prompt", [&ours.prompt, &llama.prompt]),
        ("Single token: milliseconds", "tokens before it", [&ours.depth, &llama.depth]),
        ("Prompt: tokens a second", "threads", [&ours.prompt_threads, &llama.prompt_threads]),
        ("Single tokens a second", "threads", [&ours.single_threads, &llama.single_threads]),
    ];
    for (area, (title, unit, lines)) in body.split_evenly((2, 2)).iter().zip(panels) {
        panel(area, title, unit, lines).map_err(failure)?;
    }
    root.present().map_err(failure)
}

type Failure = DrawingAreaErrorKind<std::io::Error>;

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    unit: &str,
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
        .build_cartesian_2d(Steps(steps.clone()), 0.0..highest * 1.15)?;
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

/// Whole numbers side by side at equal distances, each labelled: lengths that grow by factors.
#[derive(Clone)]
struct Steps(Vec<usize>);

impl Ranged for Steps {
    type FormatOption = NoDefaultFormatting;
    type ValueType = usize;

    fn map(&self, value: &usize, limit: (i32, i32)) -> i32 {
        let at = self.0.partition_point(|step| step < value) as f64;
        let share = (at + 0.5) / self.0.len().max(1) as f64;
        limit.0 + (share * f64::from(limit.1 - limit.0)) as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<usize> {
        self.0.clone()
    }

    fn range(&self) -> Range<usize> {
        self.0.first().copied().unwrap_or(0)..self.0.last().copied().unwrap_or(0)
    }
}

impl plotters::coord::ranged1d::ValueFormatter<usize> for Steps {
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
    fn steps_lie_at_equal_distances() {
        let steps = Steps(vec![64, 256, 8192]);
        let at: Vec<_> = [64, 256, 8192].iter().map(|step| steps.map(step, (0, 600))).collect();
        assert_eq!(at, [100, 300, 500]);
    }
}

//! Charts: figures that belong together, drawn over what was varied, as papers draw them.
//!
//! A figure says which chart it is a point of ([`Point`]). For each chart there is a picture and,
//! beside it, the numbers with a description of the machine: a picture without these says nothing.

use crate::figure::{Figure, Samples, number};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const HEIGHT: f64 = 400.0;
/// Where lines begin and end; beyond are the axis's texts, and the names of lines.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 470.0;
/// Of a letter in such a name, about.
const LETTER: f64 = 6.5;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const COLORS: [&str; 8] =
    ["#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c"];

/// Where a figure stands in a chart.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Point {
    /// Names the chart, and its files.
    pub chart: &'static str,
    /// The line that it is on.
    pub series: String,
    /// What was varied, with its unit: `RTT (ms)`.
    pub over: &'static str,
    pub at: f64,
    /// Its word, where what was varied has no numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<&'static str>,
}

/// The points of one chart, by line; references have lines of their own.
type Lines<'f> = BTreeMap<&'f str, Vec<(f64, Samples)>>;

/// How values become heights: by powers of ten where they lie a hundredfold and more apart.
struct Scale {
    /// The powers of ten at the ends; `None`: even, from 0.
    powers: Option<(f64, f64)>,
    max: f64,
}

/// Values from which on the scale goes by powers of ten.
const APART: f64 = 100.0;

impl Scale {
    fn of<'v>(values: impl Iterator<Item = &'v Samples> + Clone) -> Self {
        let max = values.clone().map(|value| value.max).fold(1e-9, f64::max);
        let min = values.map(|value| value.min).fold(max, f64::min);
        let powers =
            (min > 0.0 && max / min >= APART).then(|| (min.log10().floor(), max.log10().ceil()));
        Self { powers, max: max * 1.05 }
    }

    /// From 0 at the foot to 1.
    fn share(&self, value: f64) -> f64 {
        match self.powers {
            Some((low, high)) => (value.log10() - low) / (high - low),
            None => value / self.max,
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.powers {
            Some((low, high)) => {
                (low as i32..=high as i32).map(|power| 10f64.powi(power)).collect()
            }
            None => {
                // Four to ten of them, at round numbers.
                let power = 10f64.powf((self.max / 4.0).log10().floor());
                let steps = [1.0, 2.0, 5.0].map(|step| step * power);
                let fits = |step: &&f64| **step <= self.max / 4.0;
                let step = steps.iter().rfind(fits).copied().unwrap_or(power);
                (0..=10).map(|at| f64::from(at) * step).filter(|at| *at <= self.max).collect()
            }
        }
    }
}

/// Writes a picture and the data of each of these charts, as far as there are points of it.
pub fn write(figures: &[Figure], wanted: &[&str], folder: &Path) -> Result<()> {
    let mut charts: BTreeMap<&str, Vec<&Figure>> = BTreeMap::new();
    for figure in figures {
        if let Some(point) = &figure.point
            && wanted.contains(&point.chart)
        {
            charts.entry(point.chart).or_default().push(figure);
        }
    }
    std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    for (name, figures) in charts {
        let data = json!({ "machine": machine(), "figures": figures });
        let text = serde_json::to_string_pretty(&data)? + "\n";
        std::fs::write(folder.join(format!("{name}.json")), text)?;
        std::fs::write(folder.join(format!("{name}.svg")), svg(name, &figures))?;
    }
    Ok(())
}

/// What the figures were measured on.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let model =
        processor.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let memory = read("/proc/meminfo");
    let memory = memory.lines().next().and_then(|line| line.split_whitespace().nth(1));
    let memory = memory.and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib / (1 << 20));
    json!({
        "processor": model.unwrap_or("unknown"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory_gib": memory,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control").trim(),
        "load_at_the_end": read("/proc/loadavg").split_whitespace().next(),
    })
}

fn svg(name: &str, figures: &[&Figure]) -> String {
    let mut lines = Lines::new();
    for figure in figures {
        if let Some(point) = &figure.point {
            lines.entry(&point.series).or_default().push((point.at, figure.value));
            for reference in &figure.references {
                let line = lines.entry(reference.name).or_default();
                // Several figures may stand beside one reference.
                if line.iter().all(|(at, _)| at.total_cmp(&point.at).is_ne()) {
                    line.push((point.at, reference.value));
                }
            }
        }
    }
    lines.values_mut().for_each(|line| line.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let all = || lines.values().flatten();
    let x_max = all().map(|(x, _)| *x).fold(1e-9, f64::max);
    let scale = Scale::of(all().map(|(_, value)| value));
    let letters = lines.keys().map(|series| series.chars().count()).max().unwrap_or(0);
    let width = RIGHT + 42.0 + LETTER * letters as f64;
    let x = |at: f64| LEFT + (RIGHT - LEFT) * at / x_max;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * scale.share(value);
    let (over, unit) = figures
        .iter()
        .find_map(|figure| Some((figure.point.as_ref()?.over, figure.unit.text())))
        .unwrap_or_default();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{name}</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{over}</text>\n\
         <text x=\"{LEFT}\" y=\"{:.0}\" text-anchor=\"end\">{unit}</text>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 10.0,
        TOP - 10.0,
    );
    // Writing to a string does not fail.
    for value in scale.ticks() {
        let at = y(value);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            number(value)
        );
    }
    let points = figures.iter().filter_map(|figure| figure.point.as_ref());
    let mut ticks: Vec<(f64, String)> = points
        .map(|point| (point.at, point.label.map_or_else(|| point.at.to_string(), str::to_owned)))
        .collect();
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    ticks.dedup();
    for (tick, word) in ticks {
        let (at, foot) = (x(tick), HEIGHT - BOTTOM + 16.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{foot:.0}\" text-anchor=\"middle\">{word}</text>"
        );
    }
    for (place, (series, line)) in lines.iter().enumerate() {
        let color = COLORS[place % COLORS.len()];
        let points: Vec<String> = line
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(value.median)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for (at, value) in line {
            let (at, low, high) = (x(*at), y(value.min), y(value.max));
            let middle = y(value.median);
            let _ = writeln!(
                text,
                "<line x1=\"{at:.1}\" y1=\"{low:.1}\" x2=\"{at:.1}\" y2=\"{high:.1}\" \
                 stroke=\"{color}\"/>\n\
                 <circle cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"{color}\"/>"
            );
        }
        let row = TOP + 10.0 + 18.0 * place as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{color}\"/>\n\
             <text x=\"{:.0}\" y=\"{row:.0}\">{series}</text>",
            RIGHT + 12.0,
            row - 10.0,
            RIGHT + 30.0
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Unit;

    #[test]
    fn each_chart_has_a_picture_and_its_numbers() {
        let point = |series: &str, at| Point {
            chart: "rate-by-distance",
            series: series.to_owned(),
            over: "RTT (ms)",
            at,
            label: None,
        };
        let figure = |series, at, value| {
            Figure::single("a", Unit::MegabytesPerSecond, value).at(point(series, at))
        };
        let figures = [figure("mount", 0.2, 110.0), figure("mount", 50.0, 100.0)];
        let folder = tempfile::tempdir().unwrap();
        write(&figures, &["rate-by-distance"], folder.path()).unwrap();
        let picture = std::fs::read_to_string(folder.path().join("rate-by-distance.svg")).unwrap();
        assert!(picture.contains(">mount</text>") && picture.contains("RTT (ms)"), "{picture}");
        let data = std::fs::read_to_string(folder.path().join("rate-by-distance.json")).unwrap();
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["figures"][1]["value"]["median"], 100.0);
        assert!(data["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn values_far_apart_stand_by_their_powers_of_ten() {
        let samples = |value| Samples { median: value, min: value, max: value };
        let near = Scale::of([samples(1.0), samples(50.0)].iter());
        assert!(near.powers.is_none() && near.share(0.0) == 0.0);
        assert_eq!(near.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        let wide = Scale::of([samples(0.1), samples(15.0)].iter());
        assert_eq!(wide.ticks().len(), 4);
        assert!((wide.share(1.0) - 1.0 / 3.0).abs() < 1e-9);
    }
}

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

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// Room for the axes' texts, and for the names of lines.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
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

/// Writes a picture and the data of every chart that has points.
pub fn write(figures: &[Figure], folder: &Path) -> Result<()> {
    let mut charts: BTreeMap<&str, Vec<&Figure>> = BTreeMap::new();
    for figure in figures {
        if let Some(point) = &figure.point {
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
                lines.entry(reference.name).or_default().push((point.at, reference.value));
            }
        }
    }
    lines.values_mut().for_each(|line| line.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let all = || lines.values().flatten();
    let x_max = all().map(|(x, _)| *x).fold(1e-9, f64::max);
    let y_max = all().map(|(_, value)| value.max).fold(1e-9, f64::max) * 1.05;
    let right = WIDTH - RIGHT;
    let x = |at: f64| LEFT + (right - LEFT) * at / x_max;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / y_max;
    let (over, unit) = figures
        .iter()
        .find_map(|figure| Some((figure.point.as_ref()?.over, figure.unit.text())))
        .unwrap_or_default();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{name}</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{over}</text>\n\
         <text x=\"{LEFT}\" y=\"{:.0}\" text-anchor=\"end\">{unit}</text>\n",
        f64::midpoint(LEFT, right),
        HEIGHT - 10.0,
        TOP - 10.0,
    );
    // Writing to a string does not fail.
    for step in 0..=4 {
        let value = y_max * f64::from(step) / 4.0;
        let at = y(value);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            number(value)
        );
    }
    let points = figures.iter().filter_map(|figure| figure.point.as_ref());
    let mut ticks: Vec<(f64, String)> = points
        .map(|point| (point.at, point.label.map_or_else(|| number(point.at), str::to_owned)))
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
            right + 12.0,
            row - 10.0,
            right + 30.0
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
        write(&figures, folder.path()).unwrap();
        let picture = std::fs::read_to_string(folder.path().join("rate-by-distance.svg")).unwrap();
        assert!(picture.contains(">mount</text>") && picture.contains("RTT (ms)"), "{picture}");
        let data = std::fs::read_to_string(folder.path().join("rate-by-distance.json")).unwrap();
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["figures"][1]["value"]["median"], 100.0);
        assert!(data["machine"]["cores"].as_u64().unwrap() > 0);
    }
}

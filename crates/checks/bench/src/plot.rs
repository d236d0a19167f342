//! The figures as a picture: one bar per figure, as long as its ratio to its first reference.

use crate::figure::{Figure, Goal, number};
use std::fmt::Write;

const ROW: usize = 22;
const LEFT: usize = 330;
/// Pixels for a ratio of 1.
const SCALE: f64 = 400.0;
/// Longer bars are cut.
const RATIO_MAX: f64 = 1.5;

/// An SVG. Figures without a reference are left to the table.
pub fn svg(figures: &[Figure]) -> String {
    let rows: Vec<(&Figure, f64)> =
        figures.iter().filter_map(|figure| Some((figure, figure.ratio()?))).collect();
    let (width, height) = (LEFT + (SCALE * RATIO_MAX) as usize + 90, (rows.len() + 2) * ROW);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"15\">ratio to the reference; the line at the right is 1, \
         marks are goals</text>\n"
    );
    for (place, (figure, ratio)) in rows.iter().enumerate() {
        bar(&mut text, (place + 1) * ROW, figure, *ratio);
    }
    let one = LEFT as f64 + SCALE;
    let _ = writeln!(
        text,
        "<line x1=\"{one}\" y1=\"{ROW}\" x2=\"{one}\" y2=\"{height}\" stroke=\"#888\"/>\n</svg>"
    );
    text
}

fn bar(text: &mut String, top: usize, figure: &Figure, ratio: f64) {
    let length = SCALE * ratio.clamp(0.0, RATIO_MAX);
    let color = if figure.is_reached() == Some(false) { "#c44e52" } else { "#4c72b0" };
    let (line, middle) = (top + 14, top + 3);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "<text x=\"{0}\" y=\"{line}\" text-anchor=\"end\">{1}</text>\n\
         <rect x=\"{LEFT}\" y=\"{middle}\" width=\"{length:.1}\" height=\"14\" fill=\"{color}\"/>\n\
         <text x=\"{2:.1}\" y=\"{line}\">{3}</text>",
        LEFT - 6,
        escaped(&figure.name),
        LEFT as f64 + length + 5.0,
        number(ratio)
    );
    if let Some(Goal::Ratio(goal)) = figure.goal {
        let at = LEFT as f64 + SCALE * goal.clamp(0.0, RATIO_MAX);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"black\" \
             stroke-width=\"2\"/>",
            top + ROW - 2
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Unit, take_turns};

    #[test]
    fn bars_are_drawn_for_ratios_only() {
        let half = take_turns(
            "a < b",
            Unit::PerSecond,
            1,
            Box::new(|| Ok(1.0)),
            vec![("c", Box::new(|| Ok(2.0)))],
        );
        let half = half.unwrap().with_goal(Goal::Ratio(0.8));
        let text = svg(&[half, Figure::single("alone", Unit::Seconds, 1.0)]);
        assert!(text.contains("a &lt; b") && text.contains("width=\"200.0\""), "{text}");
        assert!(!text.contains("alone"));
    }
}

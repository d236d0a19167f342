//! Sweeps: one workload at each value of what is varied, for a chart.
//!
//! An [`Axis`] says what is varied. All its values are measured when charts are drawn, and only the
//! one that goals speak of when not. What is measured is [`Gathered`] sweep by sweep: each chart is
//! drawn as soon as there is more for it, so that a sweep that fails takes nothing with it but
//! itself.

use crate::Settings;
use crate::chart::{self, Point};
use crate::figure::Figure;
use anyhow::Result;
use std::path::Path;

/// What is varied.
pub struct Axis {
    /// With its unit.
    pub over: &'static str,
    /// As words, most of which are numbers.
    pub values: &'static [&'static str],
    /// The one that goals speak of.
    pub usual: &'static str,
    /// Values stand side by side, however far from each other they are, and under their words.
    pub is_even: bool,
}

/// The round trip of a line, in milliseconds.
pub const RTT: Axis =
    Axis { over: "RTT (ms)", values: &["0.2", "12", "50"], usual: "50", is_even: false };

impl Axis {
    /// What is to be measured.
    pub fn values(&self, settings: &Settings) -> Vec<&'static str> {
        if settings.charts.is_some() { self.values.to_vec() } else { vec![self.usual] }
    }

    pub fn point(
        &self,
        chart: &'static str,
        series: impl Into<String>,
        value: &'static str,
    ) -> Point {
        let place = || self.values.iter().position(|known| *known == value).unwrap_or(0) as f64;
        let number = if self.is_even { None } else { value.parse().ok() };
        let label = number.is_none().then_some(value);
        let (series, at) = (series.into(), number.unwrap_or_else(place));
        Point { chart, series, over: self.over, at, label }
    }

    /// A figure at its place in a chart. It keeps its goal where goals speak of this value.
    pub fn place(
        &self,
        figure: Figure,
        chart: &'static str,
        series: impl Into<String>,
        value: &'static str,
    ) -> Figure {
        let goal = figure.goal.filter(|_| value == self.usual);
        Figure { goal, ..figure }.at(self.point(chart, series, value))
    }
}

/// What was measured so far.
#[derive(Default)]
pub struct Gathered<'s> {
    /// Where charts are drawn, if they are.
    charts: Option<&'s Path>,
    pub figures: Vec<Figure>,
    /// Parts and sweeps that failed.
    pub failed: Vec<String>,
}

impl<'s> Gathered<'s> {
    pub fn new(settings: &'s Settings) -> Self {
        Self { charts: settings.charts.as_deref(), ..Self::default() }
    }

    /// Keeps what a sweep measured, and draws the charts that it has points of.
    pub fn keep(&mut self, figures: Vec<Figure>) -> Result<()> {
        let drawn: Vec<_> =
            figures.iter().filter_map(|figure| Some(figure.point.as_ref()?.chart)).collect();
        self.figures.extend(figures);
        self.charts.map_or(Ok(()), |folder| chart::write(&self.figures, &drawn, folder))
    }

    /// The same of one that may fail, which is told, and then others go on.
    pub fn keep_if_measured(&mut self, what: &str, measured: Result<Vec<Figure>>) {
        let kept = measured.and_then(|figures| self.keep(figures));
        self.note(what, kept);
    }

    /// Tells of one that failed.
    pub fn note(&mut self, what: &str, outcome: Result<()>) {
        if let Err(error) = outcome {
            eprintln!("{what} failed: {error:#}");
            self.failed.push(what.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Goal, Unit};

    #[test]
    fn goals_hold_where_they_speak_of() {
        let goal = |value| {
            let figure = Figure::single("a", Unit::Seconds, 1.0).with_goal(Goal::Value(2.0));
            RTT.place(figure, "a-by-distance", "mount", value).goal
        };
        assert_eq!((goal("12"), goal("50")), (None, Some(Goal::Value(2.0))));
    }

    #[test]
    fn values_stand_at_their_numbers_or_side_by_side() {
        let even = Axis { over: "loss", values: &["0", "1e-5"], usual: "0", is_even: true };
        let (near, lossy) = (RTT.point("a", "b", "0.2"), even.point("a", "b", "1e-5"));
        assert_eq!((near.at, near.label), (0.2, None));
        assert_eq!((lossy.at, lossy.label), (1.0, Some("1e-5")));
    }

    #[test]
    fn what_fails_takes_nothing_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut gathered = Gathered { charts: Some(folder.path()), ..Gathered::default() };
        let point = RTT.point("a-by-distance", "mount", "50");
        let figure = Figure::single("a", Unit::Seconds, 1.0).at(point);
        gathered.keep_if_measured("one", Ok(vec![figure]));
        gathered.keep_if_measured("two", Err(anyhow::anyhow!("no line")));
        assert!(folder.path().join("a-by-distance.svg").exists());
        assert_eq!((gathered.figures.len(), gathered.failed), (1, vec!["two".to_owned()]));
    }
}

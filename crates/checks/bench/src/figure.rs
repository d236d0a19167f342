//! A figure: what was measured, in turns with its references.

use crate::chart::Point;
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;

/// What a workload's numbers count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Unit {
    /// 10^6 bytes in a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    #[serde(rename = "/s")]
    PerSecond,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "MiB")]
    Mebibytes,
    /// Of one core.
    #[serde(rename = "%")]
    Percent,
    /// One amount of another.
    #[serde(rename = "x")]
    Times,
}

impl Unit {
    pub fn text(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::PerSecond => "/s",
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::Mebibytes => "MiB",
            Self::Percent => "%",
            Self::Times => "x",
        }
    }

    fn is_more_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::PerSecond)
    }
}

/// What the project wants to reach.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// At least this ratio to the first reference.
    Ratio(f64),
    /// At least this value, or at most where less is better.
    Value(f64),
}

/// Several measurements of one thing.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Samples {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// What a figure is compared to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Reference {
    pub name: &'static str,
    pub value: Samples,
    /// Of the figure to the reference: the median over the turns.
    pub ratio: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: Unit,
    pub value: Samples,
    pub references: Vec<Reference>,
    pub goal: Option<Goal>,
    /// Where it stands in a chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
}

impl Figure {
    /// One measurement that stands for itself.
    pub fn single(name: impl Into<String>, unit: Unit, value: f64) -> Self {
        let (value, references) = (Samples::of(vec![value]), Vec::new());
        Self { name: name.into(), unit, value, references, goal: None, point: None }
    }

    /// One measurement, and one of what it is compared to.
    pub fn beside(
        name: impl Into<String>,
        unit: Unit,
        value: f64,
        (reference, other): (&'static str, f64),
    ) -> Self {
        let (ratio, value_other) = (value / other, Samples::of(vec![other]));
        let reference = Reference { name: reference, value: value_other, ratio };
        Self { references: vec![reference], ..Self::single(name, unit, value) }
    }

    /// Measurements that were taken in turns with those of what they are compared to.
    pub fn of_turns(
        name: impl Into<String>,
        unit: Unit,
        own: Vec<f64>,
        others: Vec<(&'static str, Vec<f64>)>,
    ) -> Self {
        let references = others.into_iter().map(|(name, samples)| {
            let ratios = own.iter().zip(&samples).map(|(own, other)| own / other).collect();
            let ratio = Samples::of(ratios).median;
            Reference { name, value: Samples::of(samples), ratio }
        });
        let references = references.collect();
        let value = Samples::of(own);
        Self { name: name.into(), unit, value, references, goal: None, point: None }
    }

    pub fn with_goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    pub fn at(self, point: Point) -> Self {
        Self { point: Some(point), ..self }
    }

    /// Its ratio to the first reference.
    pub fn ratio(&self) -> Option<f64> {
        self.references.first().map(|reference| reference.ratio)
    }

    /// Is the goal reached? `None`: it has none.
    pub fn is_reached(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::Ratio(goal) => self.ratio()? >= goal,
            Goal::Value(goal) if self.unit.is_more_better() => self.value.median >= goal,
            Goal::Value(goal) => self.value.median <= goal,
        })
    }

    fn goal_text(&self) -> String {
        let goal = match self.goal {
            None => return String::new(),
            Some(Goal::Ratio(goal)) => number(goal),
            Some(Goal::Value(goal)) => format!("{} {}", number(goal), self.unit.text()),
        };
        let is_reached = if self.is_reached() == Some(true) { "reached" } else { "missed" };
        format!("{goal} {is_reached}")
    }
}

/// A workload: runs once, and says how fast it was.
pub type Workload<'w> = Box<dyn FnMut() -> Result<f64> + 'w>;

/// Runs a workload in turns with its references.
pub fn take_turns(
    name: impl Into<String>,
    unit: Unit,
    turns: usize,
    mut subject: Workload<'_>,
    references: Vec<(&'static str, Workload<'_>)>,
) -> Result<Figure> {
    let (names, mut workloads): (Vec<_>, Vec<_>) = references.into_iter().unzip();
    let mut own = Vec::new();
    let mut others = vec![Vec::new(); workloads.len()];
    for turn in 0..turns.max(1) {
        // Nobody is always first, and so always the one who finds the disk idle.
        let is_first = turn % 2 == 0;
        if is_first {
            own.push(subject()?);
        }
        for (workload, samples) in workloads.iter_mut().zip(&mut others) {
            samples.push(workload()?);
        }
        if !is_first {
            own.push(subject()?);
        }
    }
    Ok(Figure::of_turns(name, unit, own, names.into_iter().zip(others).collect()))
}

impl Samples {
    /// At least one.
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let median = if samples.len() % 2 == 1 {
            samples[middle]
        } else {
            (samples[middle - 1] + samples[middle]) / 2.0
        };
        Self { median, min: samples[0], max: samples[samples.len() - 1] }
    }
}

/// The figures as a table for people.
pub fn table(figures: &[Figure]) -> String {
    let mut rows = vec![[
        "workload".to_owned(),
        "median".to_owned(),
        "min .. max".to_owned(),
        "goal".to_owned(),
        "ratio to".to_owned(),
    ]];
    for figure in figures {
        let Samples { median, min, max } = figure.value;
        let unit = figure.unit.text();
        let ratios: Vec<String> = figure
            .references
            .iter()
            .map(|r| format!("{:.2} of {} ({})", r.ratio, r.name, number(r.value.median)))
            .collect();
        rows.push([
            figure.name.clone(),
            format!("{} {unit}", number(median)),
            format!("{} .. {}", number(min), number(max)),
            figure.goal_text(),
            ratios.join(", "),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for [name, median, spread, goal, ratios] in &rows {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<0$}  {median:>1$}  {spread:>2$}  {goal:<3$}  {ratios}",
            widths[0], widths[1], widths[2], widths[3]
        );
    }
    text
}

/// Three digits or so.
pub(crate) fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_turns_that_lie_side_by_side() {
        // A machine that gets slower and slower: the ratio holds.
        let (mut own, mut other) = ([10.0, 1.0, 0.1].iter(), [20.0, 2.0, 0.2].iter());
        let figure = take_turns(
            "x",
            Unit::PerSecond,
            3,
            Box::new(|| Ok(*own.next().unwrap())),
            vec![("y", Box::new(|| Ok(*other.next().unwrap())))],
        )
        .unwrap();
        assert_eq!(figure.value, Samples { median: 1.0, min: 0.1, max: 10.0 });
        assert_eq!(figure.references[0].ratio, 0.5);
        let text = table(&[figure]);
        assert!(text.contains("0.50 of y (2.00)"), "{text}");
    }

    #[test]
    fn goals_know_which_way_is_better() {
        let slow = Figure::single("x", Unit::Milliseconds, 3.0);
        assert_eq!(slow.is_reached(), None);
        assert_eq!(slow.with_goal(Goal::Value(2.0)).is_reached(), Some(false));
        let many = Figure::single("x", Unit::PerSecond, 3.0).with_goal(Goal::Value(2.0));
        assert_eq!(many.is_reached(), Some(true));
        assert!(table(&[many]).contains("2.00 /s reached"));
    }

    #[test]
    fn an_even_number_of_samples_has_a_median_between() {
        assert_eq!(Samples::of(vec![4.0, 1.0, 2.0, 100.0]).median, 3.0);
    }
}

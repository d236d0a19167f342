//! Orders with times: `cut@5s heal@15s rtt=100ms@20s`, counted from the script's start.
//!
//! Invariant: steps are in the order of their times, and few enough to be held in memory.

use crate::order::Order;
use crate::quality::{Distance, WordError};
use std::str::FromStr;
use std::time::Duration;

const STEPS_MAX: usize = 10_000;

/// Steps in the order of their times.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    pub steps: Vec<(Duration, Order)>,
    text: String,
}

impl Script {
    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl FromStr for Script {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let words = text.split(|c: char| c.is_whitespace() || c == ';' || c == ',');
        let mut orders: Vec<String> = vec![];
        for word in words.filter(|word| !word.is_empty()) {
            // An order may have several words; its time is in the last.
            match orders.last_mut().filter(|order| !order.contains('@')) {
                Some(order) => order.extend([" ", word]),
                None => orders.push(word.to_owned()),
            }
        }
        if orders.len() > STEPS_MAX {
            return Err(WordError::Step(format!("more than {STEPS_MAX} steps")));
        }
        let mut steps = orders.iter().map(|order| step(order)).collect::<Result<Vec<_>, _>>()?;
        steps.sort_by_key(|(time, _)| *time);
        Ok(Self { steps, text: text.to_owned() })
    }
}

fn step(word: &str) -> Result<(Duration, Order), WordError> {
    let wrong = || WordError::Step(word.to_owned());
    let (order, time) = word.rsplit_once('@').ok_or_else(wrong)?;
    Ok((time_of(time).ok_or_else(wrong)?, order.parse()?))
}

/// As a distance is written, or longer, in seconds or minutes.
fn time_of(text: &str) -> Option<Duration> {
    if let Ok(distance) = text.parse::<Distance>() {
        return Some(distance.0);
    }
    text.parse::<tieline_types::Span>().ok().map(|span| span.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_in_order() {
        let script: Script = "heal@15s cut=to-clients@5s; rtt=100ms@2.5s".parse().unwrap();
        let times: Vec<u128> = script.steps.iter().map(|(time, _)| time.as_millis()).collect();
        assert_eq!(times, [2_500, 5_000, 15_000]);
        assert!("heal@1min".parse::<Script>().is_ok());
        let several: Script = "cut to-servers@1s nat on@2s heal@4s".parse().unwrap();
        assert_eq!(several.steps.len(), 3);
        assert_eq!("".parse::<Script>().unwrap().steps.len(), 0);
        for wrong in ["cut", "cut@", "cut@soon", "fly@5s", "@5s"] {
            assert!(wrong.parse::<Script>().is_err(), "{wrong}");
        }
    }
}

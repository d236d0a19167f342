//! Words by which a line is changed while it works: `rtt 100ms`, `rate 100mbit`, `loss 1e-4`,
//! `queue 1MiB`, `cut`, `cut to-servers`, `cut to-clients`, `heal`, `nat on`, `nat off`,
//! `nat rebind`, `ip 6`, `ip 4`, `ip 46`, `show`.
//!
//! In front may stand which link is meant (`link NAME`), else it is all of them. In scripts, where
//! blanks part the steps, `=` stands between word and value.

use crate::quality::{Distance, Loss, Quality, Queue, Rate, WordError};
use serde::Serialize;
use std::str::FromStr;

/// What is to be done, and with which link; `None`: with all.
#[derive(Clone, PartialEq, Debug)]
pub struct Order {
    pub link: Option<String>,
    pub change: Change,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    Rtt(Distance),
    Rate(Rate),
    Loss(Loss),
    Queue(Queue),
    Cut(Way),
    Heal,
    /// Clients are behind one address, or not.
    Nat(bool),
    /// And behind another one now.
    Rebind,
    /// Packets of these IP versions pass.
    Ip(Versions),
    /// Nothing: it is only told how things are.
    Show,
}

/// IP versions that a line carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub enum Versions {
    #[default]
    #[serde(rename = "46")]
    Both,
    #[serde(rename = "4")]
    V4,
    #[serde(rename = "6")]
    V6,
}

impl Versions {
    /// Does a packet of the version pass?
    pub fn pass(self, version: u8) -> bool {
        match self {
            Self::Both => true,
            Self::V4 => version == 4,
            Self::V6 => version == 6,
        }
    }
}

/// Which directions are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Both,
    ToServers,
    ToClients,
}

impl Change {
    /// What a line is like afterwards.
    pub fn apply(self, quality: Quality) -> Quality {
        match self {
            Self::Rtt(rtt) => Quality { rtt, ..quality },
            Self::Rate(rate) => Quality { rate, ..quality },
            Self::Loss(loss) => Quality { loss, ..quality },
            Self::Queue(queue) => Quality { queue, ..quality },
            Self::Cut(_) | Self::Heal | Self::Nat(_) | Self::Rebind | Self::Ip(_) | Self::Show => {
                quality
            }
        }
    }
}

impl FromStr for Order {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let words: Vec<&str> =
            text.split(|c: char| c.is_whitespace() || c == '=').filter(|w| !w.is_empty()).collect();
        match words.as_slice() {
            ["link", link, rest @ ..] => Ok(Self {
                link: Some((*link).to_owned()),
                change: change(rest).ok_or_else(|| WordError::Order(text.to_owned()))??,
            }),
            rest => {
                let change = change(rest).ok_or_else(|| WordError::Order(text.to_owned()))??;
                Ok(Self { link: None, change })
            }
        }
    }
}

/// `None`: no such order; an error: its value is wrong.
fn change(words: &[&str]) -> Option<Result<Change, WordError>> {
    Some(match words {
        ["rtt", value] => value.parse().map(Change::Rtt),
        ["rate", value] => value.parse().map(Change::Rate),
        ["loss", value] => value.parse().map(Change::Loss),
        ["queue", value] => value.parse().map(Change::Queue),
        ["cut"] => Ok(Change::Cut(Way::Both)),
        ["cut", "to-servers"] => Ok(Change::Cut(Way::ToServers)),
        ["cut", "to-clients"] => Ok(Change::Cut(Way::ToClients)),
        ["heal"] => Ok(Change::Heal),
        ["nat", "on"] => Ok(Change::Nat(true)),
        ["nat", "off"] => Ok(Change::Nat(false)),
        ["nat", "rebind"] => Ok(Change::Rebind),
        ["ip", "4"] => Ok(Change::Ip(Versions::V4)),
        ["ip", "6"] => Ok(Change::Ip(Versions::V6)),
        ["ip", "46" | "64"] => Ok(Change::Ip(Versions::Both)),
        ["show"] => Ok(Change::Show),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_understood() {
        let order = |text: &str| text.parse::<Order>().unwrap();
        assert_eq!(order("cut").change, Change::Cut(Way::Both));
        assert_eq!(order("cut=to-servers").change, Change::Cut(Way::ToServers));
        assert_eq!(order(" rtt  100ms "), order("rtt=100ms"));
        assert_eq!(order("ip=6").change, Change::Ip(Versions::V6));
        assert_eq!(order("link uf heal").link.as_deref(), Some("uf"));
        for wrong in
            ["", "cut sideways", "rtt", "rtt 5", "fly", "link", "link uf", "heal now", "ip 5"]
        {
            assert!(wrong.parse::<Order>().is_err(), "{wrong}");
        }
    }
}

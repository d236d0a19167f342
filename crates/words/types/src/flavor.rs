//! How connections are protected, and the rules that say so, in Lustre's notation:
//! `FS.srpc.flavor.NET[.PAIR]=FLAVOR`, such as `extenci.srpc.flavor.10.0.0.0/8.cli2ost=krb5p`.
//!
//! [`FlavorRules::flavor`] decides. The network is that of the connecting end. The longest network
//! wins, and within a network a rule for the pair wins over one for all pairs. Where no rule
//! speaks, a client and an MDS use [`Flavor::Krb5p`], and all others [`Flavor::Krb5i`].

use minicbor::decode::{Decoder, Error as DecodeError};
use minicbor::encode::{Encoder, Error as EncodeError, Write};
use minicbor::{Decode, Encode};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The protection of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Flavor {
    #[n(1)]
    Null,
    #[n(2)]
    Krb5n,
    #[n(3)]
    Krb5a,
    #[n(4)]
    Krb5i,
    #[n(5)]
    Krb5p,
}

impl Flavor {
    pub const ALL: [Self; 5] = [Self::Null, Self::Krb5n, Self::Krb5a, Self::Krb5i, Self::Krb5p];

    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Krb5n => "krb5n",
            Self::Krb5a => "krb5a",
            Self::Krb5i => "krb5i",
            Self::Krb5p => "krb5p",
        }
    }
}

/// Who talks to whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Pair {
    #[n(1)]
    ClientMdt,
    #[n(2)]
    ClientOst,
    /// A server of an MDT and one of an OST, or two of OSTs, whoever dials.
    #[n(3)]
    MdtOst,
    #[n(4)]
    MdtMdt,
}

impl Pair {
    pub const ALL: [Self; 4] = [Self::ClientMdt, Self::ClientOst, Self::MdtOst, Self::MdtMdt];

    pub fn name(self) -> &'static str {
        match self {
            Self::ClientMdt => "cli2mdt",
            Self::ClientOst => "cli2ost",
            Self::MdtOst => "mdt2ost",
            Self::MdtMdt => "mdt2mdt",
        }
    }

    /// What holds where no rule speaks.
    pub fn flavor_default(self) -> Flavor {
        match self {
            Self::ClientMdt => Flavor::Krb5p,
            Self::ClientOst | Self::MdtOst | Self::MdtMdt => Flavor::Krb5i,
        }
    }
}

/// A network: `default` for all, an address, or `ADDRESS/BITS`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Network {
    Any,
    Prefix { address: IpAddr, bits: u8 },
}

impl Network {
    /// The more of an address it fixes, the longer; none if the address is not in it.
    fn length_for(self, address: Option<IpAddr>) -> Option<u8> {
        let (address, network, bits) = match (self, address) {
            (Self::Any, _) => return Some(0),
            (Self::Prefix { .. }, None) => return None,
            (Self::Prefix { address: network, bits }, Some(address)) => (address, network, bits),
        };
        let is_inside = match (network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differ = u32::from(network) ^ u32::from(address);
                differ.leading_zeros() >= u32::from(bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = u128::from(network) ^ u128::from(address);
                differ.leading_zeros() >= u32::from(bits)
            }
            _ => false,
        };
        // Any network is longer than `default`, even one of no bits.
        is_inside.then_some(bits.saturating_add(1))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("default"),
            Self::Prefix { address, bits } if *bits == bits_of(*address) => write!(f, "{address}"),
            Self::Prefix { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

/// Bits of `::ffff:0:0/96`, below which the addresses of IPv4 stand among those of IPv6.
const MAPPED: u8 = 96;

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A network or a rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlavorError {
    #[error("`{0}` is no network: write `default`, an address, or ADDRESS/BITS")]
    Network(String),
    #[error("`{0}` is no pair: cli2mdt, cli2ost, mdt2ost and mdt2mdt are; without one it is all")]
    Pair(String),
    #[error("`{0}` is no flavor: null, krb5n, krb5a, krb5i and krb5p are")]
    Flavor(String),
    #[error("`{0}`: write FS.srpc.flavor.NET[.cli2mdt|cli2ost|mdt2ost|mdt2mdt]=FLAVOR")]
    Rule(String),
}

impl FromStr for Network {
    type Err = FlavorError;

    fn from_str(text: &str) -> Result<Self, FlavorError> {
        if text == "default" {
            return Ok(Self::Any);
        }
        let wrong = || FlavorError::Network(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| wrong())?,
            None => bits_of(address),
        };
        if bits > bits_of(address) {
            return Err(wrong());
        }
        // Two ways to write one network are one.
        let (address, bits) = match address.to_canonical() {
            // Addresses are judged in their own family, too.
            IpAddr::V4(v4) if address.is_ipv6() && bits >= MAPPED => (v4.into(), bits - MAPPED),
            _ => (address, bits),
        };
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        Ok(Self::Prefix { address, bits })
    }
}

impl FromStr for Flavor {
    type Err = FlavorError;

    fn from_str(text: &str) -> Result<Self, FlavorError> {
        let found = Self::ALL.into_iter().find(|flavor| flavor.name() == text);
        found.ok_or_else(|| FlavorError::Flavor(text.to_owned()))
    }
}

impl<C> Encode<C> for Network {
    fn encode<W: Write>(
        &self,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.str(&self.to_string())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Network {
    fn decode(decoder: &mut Decoder<'b>, _: &mut C) -> Result<Self, DecodeError> {
        decoder.str()?.parse().map_err(DecodeError::custom)
    }
}

/// What one line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FlavorRule {
    #[n(0)]
    pub network: Network,
    /// All pairs for `None`.
    #[n(1)]
    pub pair: Option<Pair>,
    #[n(2)]
    pub flavor: Flavor,
}

impl FlavorRule {
    /// As it is written, without the file system.
    pub fn subject(&self) -> String {
        let pair = self.pair.map_or_else(String::new, |pair| format!(".{}", pair.name()));
        format!("srpc.flavor.{}{pair}", self.network)
    }

    /// Is it about the same connections?
    pub fn is_about(&self, other: &Self) -> bool {
        (self.network, self.pair) == (other.network, other.pair)
    }

    /// Reads `FS.srpc.flavor.NET[.PAIR]=FLAVOR`; the file system comes first.
    pub fn parse(text: &str) -> Result<(&str, Self), FlavorError> {
        let wrong = || FlavorError::Rule(text.to_owned());
        let (subject, flavor) = text.split_once('=').ok_or_else(wrong)?;
        let (fs, subject) = subject.split_once(".srpc.flavor.").ok_or_else(wrong)?;
        let named = Pair::ALL.into_iter().find_map(|pair| {
            let network = subject.strip_suffix(pair.name())?.strip_suffix('.')?;
            Some((network, pair))
        });
        let (network, pair) = match named {
            Some((network, pair)) => (network, Some(pair)),
            None => match subject.rsplit_once('.') {
                Some((network, pair))
                    if subject.parse::<Network>().is_err()
                        && network.parse::<Network>().is_ok() =>
                {
                    return Err(FlavorError::Pair(pair.to_owned()));
                }
                _ => (subject, None),
            },
        };
        Ok((fs, Self { network: network.parse()?, pair, flavor: flavor.parse()? }))
    }
}

/// All rules of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FlavorRules(#[n(0)] pub Vec<FlavorRule>);

impl FlavorRules {
    /// What is decided for a pair, when the connecting end has this address.
    pub fn flavor(&self, pair: Pair, address: Option<IpAddr>) -> Flavor {
        let speaking = self.0.iter().filter(|rule| rule.pair.is_none_or(|of| of == pair));
        let weighed = speaking.filter_map(|rule| {
            let length = rule.network.length_for(address)?;
            Some(((length, rule.pair.is_some()), rule.flavor))
        });
        // Of two that say the same of the same, the stricter.
        weighed.max().map_or(pair.flavor_default(), |(_, flavor)| flavor)
    }

    /// Does nobody have to prove anything, wherever he is?
    pub fn are_null(&self) -> bool {
        let is_null = |rule: &FlavorRule| rule.flavor == Flavor::Null;
        let none = |pair: Pair| self.flavor(pair, None) == Flavor::Null;
        self.0.iter().all(is_null) && Pair::ALL.into_iter().all(none)
    }

    /// Replaces what is said of the same connections.
    pub fn set(&mut self, rule: FlavorRule) {
        self.0.retain(|other| !other.is_about(&rule));
        self.0.push(rule);
        self.0.sort_by_key(|rule| (rule.network, rule.pair));
    }

    /// Takes away what is said of the same connections, whatever flavor that was. Says whether
    /// there was anything.
    pub fn unset(&mut self, rule: &FlavorRule) -> bool {
        let before = self.0.len();
        self.0.retain(|other| !other.is_about(rule));
        self.0.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(lines: &[&str]) -> FlavorRules {
        let mut rules = FlavorRules::default();
        for line in lines {
            rules.set(FlavorRule::parse(&format!("extenci.srpc.flavor.{line}")).unwrap().1);
        }
        rules
    }

    #[test]
    fn a_wrong_pair_is_told_which_there_are() {
        for subject in ["default.cli2oss", "10.0.0.0/8.x", "10.1.2.3.mdt2cli"] {
            let line = format!("extenci.srpc.flavor.{subject}=krb5i");
            let wrong = FlavorRule::parse(&line).unwrap_err();
            assert!(matches!(wrong, FlavorError::Pair(_)), "{subject}: {wrong}");
        }
        let wrong = FlavorRule::parse("extenci.srpc.flavor.10.0.0=krb5i").unwrap_err();
        assert!(matches!(wrong, FlavorError::Network(_)), "{wrong}");
    }

    #[test]
    fn the_nearest_rule_decides() {
        let rules = rules(&[
            "default=krb5i",
            "default.cli2mdt=krb5p",
            "10.0.0.0/8=krb5n",
            "10.0.0.0/8.cli2ost=krb5p",
            "10.1.2.3=null",
            "2001:db8::/32.mdt2mdt=krb5a",
        ]);
        let of = |pair, address: &str| rules.flavor(pair, address.parse().ok());
        assert_eq!(of(Pair::ClientMdt, "192.0.2.1"), Flavor::Krb5p);
        assert_eq!(of(Pair::ClientOst, "192.0.2.1"), Flavor::Krb5i);
        assert_eq!(of(Pair::ClientMdt, "10.0.0.1"), Flavor::Krb5n);
        assert_eq!(of(Pair::ClientOst, "10.0.0.1"), Flavor::Krb5p);
        assert_eq!(of(Pair::ClientOst, "::ffff:10.0.0.1"), Flavor::Krb5p);
        assert_eq!(of(Pair::ClientOst, "10.1.2.3"), Flavor::Null);
        assert_eq!(of(Pair::MdtMdt, "2001:db8::1"), Flavor::Krb5a);
        assert_eq!(of(Pair::MdtMdt, "no address"), Flavor::Krb5i);
    }

    #[test]
    fn a_network_of_one_family_may_be_written_as_one_of_the_other() {
        let rules = rules(&["default=krb5i", "::ffff:10.0.0.0/104=krb5p", "fe80::/10=krb5n"]);
        let of = |address: &str| rules.flavor(Pair::ClientOst, address.parse().ok());
        assert_eq!(of("10.1.2.3"), Flavor::Krb5p);
        assert_eq!(of("::ffff:10.1.2.3"), Flavor::Krb5p);
        assert_eq!(of("11.1.2.3"), Flavor::Krb5i);
        assert_eq!(of("fe80::1"), Flavor::Krb5n);
        assert_eq!("::ffff:10.0.0.0/104".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
        assert_eq!("::/90".parse::<Network>().unwrap().to_string(), "::/90");
    }

    #[test]
    fn without_rules_nothing_is_in_clear_or_unproven() {
        let none = FlavorRules::default();
        assert_eq!(none.flavor(Pair::ClientMdt, None), Flavor::Krb5p);
        assert_eq!(none.flavor(Pair::MdtOst, None), Flavor::Krb5i);
    }

    #[test]
    fn a_rule_replaces_what_was_said_of_the_same() {
        let rules = rules(&["default=krb5i", "10.0.0.0/8=krb5p", "default=krb5n"]);
        assert_eq!(rules.0.len(), 2);
        assert_eq!(rules.flavor(Pair::ClientOst, None), Flavor::Krb5n);
        assert_eq!(rules.0[1].subject(), "srpc.flavor.10.0.0.0/8");
        let bytes = minicbor::to_vec(&rules).unwrap();
        assert_eq!(minicbor::decode::<FlavorRules>(&bytes).unwrap(), rules);
        let mut fewer = rules.clone();
        let rule = FlavorRule::parse("extenci.srpc.flavor.default=null").unwrap().1;
        assert!(fewer.unset(&rule) && !fewer.unset(&rule));
        assert_eq!(fewer.0, rules.0[1..]);
    }

    #[test]
    fn nonsense_is_named() {
        for line in ["a=b", "a.srpc.flavor.x=krb5i", "a.srpc.flavor.default=krb6", "10.0.0.0/8"] {
            assert!(FlavorRule::parse(line).is_err(), "{line}");
        }
        assert!("10.0.0.0/33".parse::<Network>().is_err());
    }
}

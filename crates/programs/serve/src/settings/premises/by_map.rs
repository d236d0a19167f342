//! What the federation map has of the MDT and the OSTs that settings say are here.
//!
//! An index is named as settings have it and, since everything else names it so, by its label in
//! hexadecimal.

use super::Found;
use crate::settings::Plan;
use std::collections::BTreeSet;
use tieline_format::map::FederationMap;
use tieline_types::{MdtIndex, OstIndex};

/// What to do about whatever the map does not have.
const ADD: &str = "or add it (docs/operations.md, \"Another site\")";

impl Plan {
    /// The map must know what the settings say is here.
    pub fn look_at_map(&self, map: &FederationMap, found: &mut Found) {
        if map.fs != self.fs {
            // Whatever else it says is of another federation.
            let what = format!(
                "the federation map in `state` is that of `{0}`: write \"{0}\", or \
                name the `state` of /{1}",
                map.fs, self.fs
            );
            return found.wrong("fs", what);
        }
        let homes = map.mdts.iter().map(|mdt| &mdt.home);
        let sites: BTreeSet<_> = map.osts.iter().map(|ost| &ost.site).chain(homes).collect();
        let is_site = sites.contains(&self.site);
        self.look_at_mdt(map, is_site, found);
        let elsewhere = self.look_at_indices(map, is_site, found);
        let of_all = match elsewhere.as_slice() {
            [(_, site), others @ ..] if others.iter().all(|(_, other)| other == site) => Some(site),
            _ => None,
        };
        let is_whole = elsewhere.len() == self.osts.len();
        if let Some(site) = of_all.filter(|_| is_whole) {
            let osts: Vec<String> = self.osts.iter().map(|ost| ost_named(ost.index)).collect();
            let what = format!(
                "the federation map has {} at `{site}`: write \"{site}\"{}",
                osts.join(", "),
                match is_site {
                    true => format!(", or name OSTs of `{}`{}", self.site, self.known_osts(map)),
                    false => String::new(),
                }
            );
            found.wrong("site", what);
        } else if !is_site {
            let sites: Vec<String> = sites.iter().map(|site| format!("\"{site}\"")).collect();
            let what = format!(
                "the federation map has no site `{}`: write one of {}, {ADD}",
                self.site,
                sites.join(", ")
            );
            found.wrong("site", what);
        } else {
            for (place, site) in elsewhere {
                let what = format!(
                    "{} is at `{site}` in the federation map: name one of `{}`{}",
                    ost_named(self.osts[place].index),
                    self.site,
                    self.known_osts(map)
                );
                found.wrong(&format!("ost[{place}].index"), what);
            }
        }
        self.look_at_port(map, found);
        for (place, ost) in self.osts.iter().enumerate() {
            for mdt in ost.limits.mdts.iter().flatten().filter(|mdt| map.mdt(**mdt).is_none()) {
                let all: Vec<String> = map.mdts.iter().map(|mdt| mdt.mdt.0.to_string()).collect();
                let what = format!(
                    "{} is not in the federation map, whose MDTs are {}: no chunks of it come",
                    mdt_named(*mdt),
                    all.join(", ")
                );
                found.doubt(&format!("ost[{place}].mdts"), what);
            }
        }
    }

    fn look_at_mdt(&self, map: &FederationMap, is_site: bool, found: &mut Found) {
        let Some(mdt) = &self.mdt else { return };
        match map.mdt(mdt.index) {
            None => {
                let at_home = map.mdts.iter().filter(|mdt| mdt.home == self.site);
                let known = self.one_of(is_site, &listed(at_home.map(|mdt| mdt.mdt.0)));
                let what =
                    format!("{} is not in the federation map: {known}", mdt_named(mdt.index));
                found.wrong("mdt.index", what);
            }
            Some(known) if known.home != self.site => {
                let what = format!(
                    "{} is at home at `{}` in the federation map, not at `{}`",
                    mdt_named(mdt.index),
                    known.home,
                    self.site
                );
                found.doubt("mdt.index", what);
            }
            Some(_) => {}
        }
    }

    /// Which OSTs are not at this site, and where.
    fn look_at_indices<'m>(
        &self,
        map: &'m FederationMap,
        is_site: bool,
        found: &mut Found,
    ) -> Vec<(usize, &'m str)> {
        let mut elsewhere = Vec::new();
        for (place, ost) in self.osts.iter().enumerate() {
            match map.ost(ost.index) {
                None => {
                    let known = self.one_of(is_site, &self.known_osts(map));
                    let what =
                        format!("{} is not in the federation map: {known}", ost_named(ost.index));
                    found.wrong(&format!("ost[{place}].index"), what);
                }
                Some(known) if known.site != self.site => {
                    elsewhere.push((place, known.site.as_str()));
                }
                Some(_) => {}
            }
        }
        elsewhere
    }

    /// What an index could be instead; of a site that is not there, `site` says what it could be.
    fn one_of(&self, is_site: bool, known: &str) -> String {
        match is_site {
            true => format!("name one of `{}`{known}, {ADD}", self.site),
            false => format!("name one of your site, {ADD}"),
        }
    }

    /// Others dial what the map says.
    fn look_at_port(&self, map: &FederationMap, found: &mut Found) {
        let of_mdt = self.mdt.as_ref().and_then(|mdt| map.mdt(mdt.index));
        let of_osts = self.osts.iter().filter_map(|ost| map.ost(ost.index));
        let own = of_osts.filter(|ost| ost.site == self.site).map(|ost| &ost.addresses);
        let all: BTreeSet<&String> =
            of_mdt.map(|mdt| &mdt.addresses).into_iter().chain(own).flatten().collect();
        let port = |address: &str| address.rsplit_once(':').map(|(_, port)| port.to_owned());
        let here = port(&self.listen).unwrap_or_default();
        if all.is_empty() || here == "0" || all.iter().any(|at| port(at).as_ref() == Some(&here)) {
            return;
        }
        let all: Vec<&str> = all.into_iter().map(String::as_str).collect();
        let what = format!(
            "port {here} is in no address that the federation map has of this server \
            ({}), and others dial those: listen at that port, unless something leads from there to \
            here",
            all.join(", ")
        );
        found.doubt("listen", what);
    }

    fn known_osts(&self, map: &FederationMap) -> String {
        let own = map.osts.iter().filter(|ost| ost.site == self.site);
        listed(own.map(|ost| ost.ost.0))
    }
}

fn ost_named(ost: OstIndex) -> String {
    format!("{} ({})", ost.0, ost.label())
}

fn mdt_named(mdt: MdtIndex) -> String {
    format!("{} ({})", mdt.0, mdt.label())
}

/// ` (0, 1)`, or that there are none.
fn listed(numbers: impl Iterator<Item = u16>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    if numbers.is_empty() {
        " (there are none)".into()
    } else {
        format!(" ({})", numbers.join(", "))
    }
}

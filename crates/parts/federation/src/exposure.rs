//! Pools whose files lie whole in a directory, too: where, and since when.

use super::{DIRECTORY_BYTES_MAX, EditError, pool_mut};
use tieline_format::map::{Exposure, FederationMap, Pool};
use tieline_types::{Flavor, OstIndex, Pair, PoolName, Version};

/// Exposes a pool, by the server of one of its OSTs.
pub fn expose(
    map: &mut FederationMap,
    name: &PoolName,
    (directory, ost): (&str, Option<OstIndex>),
    is_trusted: bool,
) -> Result<(), EditError> {
    check_directory(directory)?;
    if !is_trusted {
        check_at_rest(map)?;
    }
    let since = Version(map.version.0 + 1);
    let pool = pool_mut(map, name)?;
    let ost = match (ost, pool.osts.first()) {
        (Some(ost), _) if pool.osts.contains(&ost) => ost,
        (Some(ost), _) => return Err(EditError::NotInPool { pool: name.clone(), ost }),
        (None, Some(&first)) => first,
        (None, None) => return Err(EditError::NowhereExposed(name.clone())),
    };
    let same = |old: &&Exposure| old.directory == directory && old.ost == ost;
    if pool.exposed().filter(same).is_some() {
        return Ok(());
    }
    check_hidden(pool)?;
    let directory = directory.to_owned();
    pool.exposure = Some(Exposure { directory, ost, since, is_over: None });
    Ok(())
}

/// Ends an exposure. Where it was stays known, so that what lies there can be taken away.
pub fn hide(map: &mut FederationMap, name: &PoolName) -> Result<(), EditError> {
    let pool = pool_mut(map, name)?;
    let exposure = pool.exposure.as_mut().filter(|exposure| exposure.is_over != Some(true));
    let exposure = exposure.ok_or_else(|| EditError::NotExposed(name.clone()))?;
    exposure.is_over = Some(true);
    Ok(())
}

/// What is exposed is hidden first.
pub fn check_hidden(pool: &Pool) -> Result<(), EditError> {
    match pool.exposed() {
        Some(Exposure { directory, .. }) => {
            let (pool, directory) = (pool.name.clone(), directory.clone());
            Err(EditError::PoolExposed { pool, directory })
        }
        None => Ok(()),
    }
}

fn check_directory(directory: &str) -> Result<(), EditError> {
    let is_short = directory.len() <= DIRECTORY_BYTES_MAX && !directory.contains('\0');
    let is_straight = !directory.split('/').any(|name| name == ".." || name == ".");
    let is_absolute = directory.starts_with('/') && directory.len() > 1;
    if is_short && is_straight && is_absolute {
        Ok(())
    } else {
        Err(EditError::NoDirectory(directory.to_owned()))
    }
}

/// Where some bytes may not be read on their way, others must not read them where they lie.
fn check_at_rest(map: &FederationMap) -> Result<(), EditError> {
    let rules = map.security.iter().flat_map(|security| &security.flavors.0);
    let mut secret = rules.filter(|rule| {
        let is_of_bytes = rule.pair.is_none_or(|pair| pair == Pair::ClientOst);
        is_of_bytes && rule.flavor == Flavor::Krb5p
    });
    match secret.next() {
        Some(rule) => {
            let rule = format!("{}={}", rule.subject(), rule.flavor.name());
            Err(EditError::AtRest { rule })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply;
    use tieline_format::map::{Ost, Security};
    use tieline_types::{FlavorRule, FlavorRules};
    use tieline_wire::federation::MapEdit;

    fn map() -> FederationMap {
        let ost = |index| Ost {
            ost: OstIndex(index),
            site: "uf".parse().unwrap(),
            addresses: vec![],
            is_active: true,
        };
        let pool = |name: &str, osts| Pool {
            name: name.parse().unwrap(),
            osts,
            exposure: None,
            hsm: None,
        };
        FederationMap {
            fs: "extenci".parse().unwrap(),
            version: Version(7),
            mdts: vec![],
            junctions: vec![],
            osts: vec![ost(0), ost(1)],
            pools: vec![pool("none", vec![]), pool("uf", vec![OstIndex(0), OstIndex(1)])],
            security: None,
            invitations: None,
            repositories: None,
        }
    }

    fn expose(pool: &str, directory: &str, ost: Option<u16>, is_trusted: bool) -> MapEdit {
        let ost = ost.map(OstIndex);
        let (pool, directory) = (pool.parse().unwrap(), directory.to_owned());
        MapEdit::PoolExpose { pool, directory, ost, is_trusted }
    }

    #[test]
    fn a_pool_is_exposed_by_one_ost_until_it_is_hidden() {
        let edited = |map: &FederationMap, edit: &MapEdit| apply(map, edit, 0);
        let (map, name): (_, PoolName) = (map(), "uf".parse().unwrap());
        for wrong in ["out", "/", "/srv/../etc", "/srv/./out", "/a\0b"] {
            let refused = edited(&map, &expose("uf", wrong, None, false));
            assert_eq!(refused, Err(EditError::NoDirectory(wrong.to_owned())));
        }
        let nowhere = edited(&map, &expose("none", "/srv/out", None, false));
        assert!(matches!(nowhere, Err(EditError::NowhereExposed(_))));
        let other = edited(&map, &expose("uf", "/srv/out", Some(7), false));
        assert!(matches!(other, Err(EditError::NotInPool { .. })));
        let exposed = edited(&map, &expose("uf", "/srv/out", Some(1), false)).unwrap();
        let found = exposed.pool(&name).unwrap().exposed().cloned().unwrap();
        assert_eq!((found.ost, found.since), (OstIndex(1), Version(8)));
        // The same again is nothing new; another directory is.
        let again = edited(&exposed, &expose("uf", "/srv/out", Some(1), false)).unwrap();
        assert_eq!(again.pool(&name), exposed.pool(&name));
        let elsewhere = edited(&exposed, &expose("uf", "/srv/other", None, false));
        assert!(matches!(elsewhere, Err(EditError::PoolExposed { .. })));
        let osts = vec![OstIndex(1)];
        let taken = edited(&exposed, &MapEdit::PoolRemove { pool: name.clone(), osts });
        assert!(matches!(taken, Err(EditError::PoolExposed { .. })));
        let hidden = edited(&exposed, &MapEdit::PoolHide(name.clone())).unwrap();
        assert_eq!(hidden.pool(&name).unwrap().exposed(), None);
        assert!(hidden.pool(&name).unwrap().exposure.is_some(), "where it was is known");
        let twice = edited(&hidden, &MapEdit::PoolHide(name.clone()));
        assert_eq!(twice, Err(EditError::NotExposed(name)));
    }

    #[test]
    fn what_is_encrypted_on_its_way_is_exposed_only_by_a_word_more() {
        let (_, rule) = FlavorRule::parse("extenci.srpc.flavor.10.0.0.0/8.cli2ost=krb5p").unwrap();
        let security = Security {
            realm: "EXTENCI.ORG".to_owned(),
            flavors: FlavorRules(vec![rule]),
            services: vec![],
            machines: None,
            strangers: None,
            doors: None,
            issuers: None,
        };
        let map = FederationMap { security: Some(security), ..map() };
        let refused = apply(&map, &expose("uf", "/srv/out", None, false), 0);
        assert!(matches!(refused, Err(EditError::AtRest { .. })), "{refused:?}");
        apply(&map, &expose("uf", "/srv/out", None, true), 0).unwrap();
    }
}

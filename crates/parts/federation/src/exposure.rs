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

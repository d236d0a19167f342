//! Changes of the federation map, as pure functions with Lustre's meanings.

use std::collections::BTreeSet;
use tieline_format::map::{FederationMap, Machine, Pool, Security};
use tieline_types::{ErrorKind, MachineTrust, OstIndex, PoolName, Version};
use tieline_wire::federation::MapEdit;

/// Why the map was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("pool {0} exists already")]
    PoolExists(PoolName),
    #[error("pool {0} does not exist: make it with `tieline pool new`")]
    NoPool(PoolName),
    #[error("pool {pool} still has {count} OSTs: remove them first")]
    PoolNotEmpty { pool: PoolName, count: usize },
    #[error("{ost} is not in the federation map", ost = .0.label())]
    NoOst(OstIndex),
    #[error("{ost} is in pool {pool} already", ost = .ost.label())]
    InPool { pool: PoolName, ost: OstIndex },
    #[error("{ost} is not in pool {pool}", ost = .ost.label())]
    NotInPool { pool: PoolName, ost: OstIndex },
    #[error("this federation has no realm: no connection can be proven, so none can be protected")]
    NoRealm,
    #[error("`{0}` is no machine's principal: host/NAME@REALM or tieline_role/NAME@REALM is")]
    NoMachine(String),
    #[error("no OST was named")]
    NothingNamed,
}

impl EditError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::PoolExists(_) | Self::InPool { .. } => ErrorKind::Exists,
            Self::NoPool(_) | Self::NoOst(_) | Self::NotInPool { .. } => ErrorKind::NotFound,
            Self::PoolNotEmpty { .. } => ErrorKind::NotEmpty,
            Self::NoRealm => ErrorKind::NotSupported,
            Self::NothingNamed | Self::NoMachine(_) => ErrorKind::InvalidArgument,
        }
    }
}

/// The map after an edit, with the next version. An edit is done whole or not at all.
pub fn apply(map: &FederationMap, edit: &MapEdit) -> Result<FederationMap, EditError> {
    let mut map = map.clone();
    match edit {
        MapEdit::PoolNew(name) => pool_new(&mut map, name)?,
        MapEdit::PoolDestroy(name) => pool_destroy(&mut map, name)?,
        MapEdit::PoolAdd { pool, osts } => pool_add(&mut map, pool, osts)?,
        MapEdit::PoolRemove { pool, osts } => pool_remove(&mut map, pool, osts)?,
        MapEdit::OstActivate(ost) => set_active(&mut map, *ost, true)?,
        MapEdit::OstDeactivate(ost) => set_active(&mut map, *ost, false)?,
        MapEdit::FlavorSet(rule) => match &mut map.security {
            Some(security) => security.flavors.set(*rule),
            None => return Err(EditError::NoRealm),
        },
        MapEdit::MachineSet { principal, trust } => set_machine(&mut map, principal, *trust)?,
        MapEdit::StrangersSet(rule) => security(&mut map)?.strangers = Some(*rule),
    }
    map.version = Version(map.version.0 + 1);
    Ok(map)
}

fn pool_new(map: &mut FederationMap, name: &PoolName) -> Result<(), EditError> {
    if map.pool(name).is_some() {
        return Err(EditError::PoolExists(name.clone()));
    }
    map.pools.push(Pool { name: name.clone(), osts: vec![] });
    map.pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

fn pool_destroy(map: &mut FederationMap, name: &PoolName) -> Result<(), EditError> {
    let count = pool_mut(map, name)?.osts.len();
    if count > 0 {
        return Err(EditError::PoolNotEmpty { pool: name.clone(), count });
    }
    map.pools.retain(|pool| pool.name != *name);
    Ok(())
}

fn pool_add(map: &mut FederationMap, name: &PoolName, osts: &[OstIndex]) -> Result<(), EditError> {
    let known: BTreeSet<OstIndex> = map.osts.iter().map(|ost| ost.ost).collect();
    let pool = pool_mut(map, name)?;
    if osts.is_empty() {
        return Err(EditError::NothingNamed);
    }
    for &ost in osts {
        if !known.contains(&ost) {
            return Err(EditError::NoOst(ost));
        }
        if pool.osts.contains(&ost) {
            return Err(EditError::InPool { pool: name.clone(), ost });
        }
        pool.osts.push(ost);
    }
    pool.osts.sort_unstable();
    Ok(())
}

fn pool_remove(
    map: &mut FederationMap,
    name: &PoolName,
    osts: &[OstIndex],
) -> Result<(), EditError> {
    let pool = pool_mut(map, name)?;
    if osts.is_empty() {
        return Err(EditError::NothingNamed);
    }
    for &ost in osts {
        if !pool.osts.contains(&ost) {
            return Err(EditError::NotInPool { pool: name.clone(), ost });
        }
        pool.osts.retain(|other| *other != ost);
    }
    Ok(())
}

fn security(map: &mut FederationMap) -> Result<&mut Security, EditError> {
    map.security.as_mut().ok_or(EditError::NoRealm)
}

fn set_machine(
    map: &mut FederationMap,
    principal: &str,
    trust: Option<MachineTrust>,
) -> Result<(), EditError> {
    if !principal.contains('/') || !principal.contains('@') {
        return Err(EditError::NoMachine(principal.to_owned()));
    }
    let machines = security(map)?.machines.get_or_insert_default();
    machines.retain(|machine| machine.principal != principal);
    machines.extend(trust.map(|trust| Machine { principal: principal.to_owned(), trust }));
    machines.sort_by(|a, b| a.principal.cmp(&b.principal));
    Ok(())
}

/// Says the same of an OST twice without complaint, as `lctl` does.
fn set_active(map: &mut FederationMap, index: OstIndex, is_active: bool) -> Result<(), EditError> {
    let ost = map.osts.iter_mut().find(|ost| ost.ost == index);
    ost.ok_or(EditError::NoOst(index))?.is_active = is_active;
    Ok(())
}

fn pool_mut<'m>(map: &'m mut FederationMap, name: &PoolName) -> Result<&'m mut Pool, EditError> {
    let pool = map.pools.iter_mut().find(|pool| pool.name == *name);
    pool.ok_or_else(|| EditError::NoPool(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_format::map::Ost;

    fn map() -> FederationMap {
        let ost = |index| Ost {
            ost: OstIndex(index),
            site: "uf".parse().unwrap(),
            addresses: vec![],
            is_active: true,
        };
        FederationMap {
            fs: "extenci".parse().unwrap(),
            version: Version(7),
            mdts: vec![],
            junctions: vec![],
            osts: vec![ost(0), ost(1)],
            pools: vec![],
            security: None,
        }
    }

    fn pool() -> PoolName {
        "uf".parse().unwrap()
    }

    fn add(osts: &[u16]) -> MapEdit {
        MapEdit::PoolAdd { pool: pool(), osts: osts.iter().map(|&i| OstIndex(i)).collect() }
    }

    #[test]
    fn a_pool_lives_as_in_lustre() {
        let map = map();
        assert_eq!(apply(&map, &add(&[0])), Err(EditError::NoPool(pool())));
        let map = apply(&map, &MapEdit::PoolNew(pool())).unwrap();
        assert_eq!(map.version, Version(8));
        let again = apply(&map, &MapEdit::PoolNew(pool()));
        assert_eq!(again, Err(EditError::PoolExists(pool())));
        let map = apply(&map, &add(&[1, 0])).unwrap();
        assert_eq!(map.pool(&pool()).unwrap().osts, [OstIndex(0), OstIndex(1)]);
        let full = apply(&map, &MapEdit::PoolDestroy(pool()));
        assert_eq!(full, Err(EditError::PoolNotEmpty { pool: pool(), count: 2 }));
        let osts = vec![OstIndex(0), OstIndex(1)];
        let map = apply(&map, &MapEdit::PoolRemove { pool: pool(), osts }).unwrap();
        let map = apply(&map, &MapEdit::PoolDestroy(pool())).unwrap();
        assert!(map.pools.is_empty());
    }

    #[test]
    fn an_edit_is_done_whole_or_not_at_all() {
        let map = apply(&map(), &MapEdit::PoolNew(pool())).unwrap();
        assert_eq!(apply(&map, &add(&[0, 9])), Err(EditError::NoOst(OstIndex(9))));
        let in_pool = EditError::InPool { pool: pool(), ost: OstIndex(0) };
        assert_eq!(apply(&map, &add(&[0, 0])), Err(in_pool));
        assert_eq!(apply(&map, &add(&[])), Err(EditError::NothingNamed));
    }

    #[test]
    fn osts_are_switched_off_and_on() {
        let off = apply(&map(), &MapEdit::OstDeactivate(OstIndex(1))).unwrap();
        assert!(!off.ost(OstIndex(1)).unwrap().is_active);
        let on = apply(&off, &MapEdit::OstActivate(OstIndex(1))).unwrap();
        assert!(on.ost(OstIndex(1)).unwrap().is_active);
        let unknown = apply(&on, &MapEdit::OstActivate(OstIndex(5)));
        assert_eq!(unknown, Err(EditError::NoOst(OstIndex(5))));
    }
}

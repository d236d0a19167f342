//! Changes of the federation map, as pure functions with Lustre's meanings.
//!
//! Knows neither who may change it nor who signs it. An edit is done whole or not at all.

mod exposure;

use minicbor::bytes::ByteVec;
use std::collections::BTreeSet;
use tieline_auth::principal_at;
use tieline_format::map::{
    Catalog, FederationMap, Invitation, Junction, Machine, Mdt, Ost, Pool, PublicKey, Repository,
    Security, Service,
};
use tieline_types::door::DoorError;
use tieline_types::tape::{Hsm, HsmError};
use tieline_types::{
    Door, ErrorKind, FileId, Issuer, IssuerError, MachineTrust, MdtIndex, Name, OstIndex, PoolName,
    RepositoryName, SiteName, Version,
};
use tieline_wire::federation::{MapEdit, RepositoryAdd, RepositoryTrust, SiteJoin};

/// Invitations that are open at one time.
const INVITATIONS_MAX: usize = 64;
/// OSTs that one server may bring.
const OSTS_PER_SERVER_MAX: u16 = 64;
const ADDRESSES_MAX: usize = 16;
/// Master keys of a repository, and the largest: RSA with 8,192 bits.
const KEYS_MAX: usize = 16;
const KEY_BYTES_MAX: usize = 1100;
const DOORS_MAX: usize = 256;
const ISSUERS_MAX: usize = 64;
const ADDRESS_BYTES_MAX: usize = 255;
/// Of an exposed directory.
const DIRECTORY_BYTES_MAX: usize = 1024;

/// Why the map was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("pool {0} exists already")]
    PoolExists(PoolName),
    #[error("pool {0} does not exist: make it with `tieline pool new`")]
    NoPool(PoolName),
    #[error("pool {pool} still has {count} OSTs: remove them first")]
    PoolNotEmpty { pool: PoolName, count: usize },
    #[error(
        "pool {pool} is exposed in {directory} already: say `tieline pool set {pool} --no-expose` \
         first"
    )]
    PoolExposed { pool: PoolName, directory: String },
    #[error("pool {0} is not exposed")]
    NotExposed(PoolName),
    #[error("pool {0} has no OSTs: add one whose machine has the directory")]
    NowhereExposed(PoolName),
    #[error("`{0}` is no absolute path of at most {DIRECTORY_BYTES_MAX} bytes without `..`")]
    NoDirectory(String),
    #[error(
        "rule {rule} has bytes encrypted on their way to and from OSTs, and whoever reads the disk \
         of an exposed pool reads them plain: say --at-rest trusted if that is meant"
    )]
    AtRest { rule: String },
    #[error("{ost} is not in the federation map", ost = .0.label())]
    NoOst(OstIndex),
    #[error("{ost} is in pool {pool} already", ost = .ost.label())]
    InPool { pool: PoolName, ost: OstIndex },
    #[error("{ost} is not in pool {pool}", ost = .ost.label())]
    NotInPool { pool: PoolName, ost: OstIndex },
    #[error("this federation has no realm: no connection can be proven, so none can be protected")]
    NoRealm,
    #[error("there is no rule `{0}`: `tieline flavor list` shows them")]
    NoRule(String),
    #[error("`{0}` is no machine's principal: host/NAME@REALM or tieline_role/NAME@REALM is")]
    NoMachine(String),
    #[error(transparent)]
    Door(#[from] DoorError),
    #[error(transparent)]
    Hsm(#[from] HsmError),
    #[error("{0} is a server of the federation: a door has a principal and services of its own")]
    ServerNoDoor(String),
    #[error("{0} is no door: `tieline door list` shows who is")]
    NoDoor(String),
    #[error("the map names {DOORS_MAX} doors, which is the most")]
    DoorsFull,
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    #[error("{0} is no issuer here: `tieline issuer list` shows who is")]
    NoIssuer(String),
    #[error("the map names {ISSUERS_MAX} issuers, which is the most")]
    IssuersFull,
    #[error("no OST was named")]
    NothingNamed,
    #[error("{INVITATIONS_MAX} invitations are open: wait until some are used or over")]
    InvitationsFull,
    #[error("this invitation was used, is over, or was never given: ask for another one")]
    NotInvited,
    #[error("{0} has no open invitation: `tieline site list` shows who has")]
    NoInvitation(SiteName),
    #[error("a server brings 1 to {OSTS_PER_SERVER_MAX} OSTs, an MDT, or both")]
    NothingBrought,
    #[error("a server is reached at 1 to {ADDRESSES_MAX} addresses HOST:PORT")]
    NoAddress,
    #[error("{address} is the address of another server of the map")]
    AddressTaken { address: String },
    #[error("`{0}` is mounted in the root directory already: bring OSTs only")]
    JunctionTaken(SiteName),
    #[error("`{0}` is mounted in the root directory already: choose another name")]
    NameTaken(Name),
    #[error("repository {0} is in the federation map already")]
    RepositoryExists(RepositoryName),
    #[error("repository {0} is not in the federation map: `tieline map show` lists them")]
    NoRepository(RepositoryName),
    #[error("a repository has 1 to {ADDRESSES_MAX} sources http://…, https://… or file:///…")]
    NoSource,
    #[error("a repository is believed by 1 to {KEYS_MAX} keys of at most {KEY_BYTES_MAX} bytes")]
    NoKey,
    #[error("no target has a number left")]
    NumbersGone,
}

impl EditError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::PoolExists(_) | Self::InPool { .. } => ErrorKind::Exists,
            Self::AddressTaken { .. } | Self::JunctionTaken(_) => ErrorKind::Exists,
            Self::RepositoryExists(_) | Self::NameTaken(_) => ErrorKind::Exists,
            Self::NoRepository(_) => ErrorKind::NotFound,
            Self::NoSource | Self::NoKey => ErrorKind::InvalidArgument,
            Self::NoPool(_) | Self::NoOst(_) | Self::NotInPool { .. } | Self::NoRule(_) => {
                ErrorKind::NotFound
            }
            Self::PoolNotEmpty { .. } => ErrorKind::NotEmpty,
            Self::PoolExposed { .. } => ErrorKind::Busy,
            Self::AtRest { .. } => ErrorKind::NotPermitted,
            Self::NotExposed(_) | Self::NowhereExposed(_) | Self::NoDirectory(_) => {
                ErrorKind::InvalidArgument
            }
            Self::NoDoor(_) => ErrorKind::NotFound,
            Self::Door(_) | Self::ServerNoDoor(_) | Self::Hsm(_) => ErrorKind::InvalidArgument,
            Self::NoIssuer(_) | Self::NoInvitation(_) => ErrorKind::NotFound,
            Self::Issuer(_) => ErrorKind::InvalidArgument,
            Self::DoorsFull | Self::IssuersFull => ErrorKind::NoSpace,
            Self::NoRealm => ErrorKind::NotSupported,
            Self::NothingNamed | Self::NoMachine(_) => ErrorKind::InvalidArgument,
            Self::NothingBrought | Self::NoAddress => ErrorKind::InvalidArgument,
            Self::InvitationsFull | Self::NumbersGone => ErrorKind::NoSpace,
            Self::NotInvited => ErrorKind::NotPermitted,
        }
    }
}

/// The map after an edit at a time, with the next version. An edit is done whole or not at all.
pub fn apply(map: &FederationMap, edit: &MapEdit, now_ms: u64) -> Result<FederationMap, EditError> {
    let mut map = map.clone();
    match edit {
        MapEdit::PoolNew(name) => pool_new(&mut map, name)?,
        MapEdit::PoolDestroy(name) => pool_destroy(&mut map, name)?,
        MapEdit::PoolAdd { pool, osts } => pool_add(&mut map, pool, osts)?,
        MapEdit::PoolRemove { pool, osts } => pool_remove(&mut map, pool, osts)?,
        MapEdit::PoolExpose { pool, directory, ost, is_trusted } => {
            exposure::expose(&mut map, pool, (directory, *ost), *is_trusted)?;
        }
        MapEdit::PoolHide(pool) => exposure::hide(&mut map, pool)?,
        MapEdit::PoolHsm { pool, hsm } => pool_hsm(&mut map, pool, hsm.as_ref())?,
        MapEdit::OstActivate(ost) => set_active(&mut map, *ost, true)?,
        MapEdit::OstDeactivate(ost) => set_active(&mut map, *ost, false)?,
        MapEdit::FlavorSet(rule) => match &mut map.security {
            Some(security) => security.flavors.set(*rule),
            None => return Err(EditError::NoRealm),
        },
        MapEdit::FlavorUnset(rule) => {
            if !security(&mut map)?.flavors.unset(rule) {
                return Err(EditError::NoRule(rule.subject()));
            }
        }
        MapEdit::MachineSet { principal, trust } => set_machine(&mut map, principal, *trust)?,
        MapEdit::StrangersSet(rule) => security(&mut map)?.strangers = Some(*rule),
        MapEdit::DoorSet(door) => set_door(&mut map, door)?,
        MapEdit::DoorRemove(principal) => remove_door(&mut map, principal)?,
        MapEdit::IssuerSet(issuer) => set_issuer(&mut map, issuer)?,
        // Who signs it is no part of the map.
        MapEdit::KeyRotate => {}
        MapEdit::IssuerRemove(url) => remove_issuer(&mut map, url)?,
        MapEdit::SiteInvite { site, digest, until_ms } => {
            let invitation =
                Invitation { site: site.clone(), digest: *digest, until_ms: *until_ms };
            site_invite(&mut map, invitation, now_ms)?;
        }
        MapEdit::SiteUninvite(site) => site_uninvite(&mut map, site, now_ms)?,
        MapEdit::SiteJoin(join) => site_join(&mut map, join, now_ms)?,
        MapEdit::RepositoryAdd(add) => repository_add(&mut map, add)?,
        MapEdit::RepositoryTrust(add) => repository_trust(&mut map, add)?,
        MapEdit::RepositoryRemove(name) => repository_remove(&mut map, name)?,
    }
    map.version = Version(map.version.0 + 1);
    Ok(map)
}

fn pool_new(map: &mut FederationMap, name: &PoolName) -> Result<(), EditError> {
    if map.pool(name).is_some() {
        return Err(EditError::PoolExists(name.clone()));
    }
    map.pools.push(Pool { name: name.clone(), osts: vec![], exposure: None, hsm: None });
    map.pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

fn pool_hsm(map: &mut FederationMap, name: &PoolName, hsm: Option<&Hsm>) -> Result<(), EditError> {
    let pool = pool_mut(map, name)?;
    if let Some(hsm) = hsm {
        hsm.validate()?;
    }
    pool.hsm = hsm.cloned();
    Ok(())
}

fn pool_destroy(map: &mut FederationMap, name: &PoolName) -> Result<(), EditError> {
    let pool = pool_mut(map, name)?;
    exposure::check_hidden(pool)?;
    let count = pool.osts.len();
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
        if pool.exposed().is_some_and(|exposure| exposure.ost == ost) {
            exposure::check_hidden(pool)?;
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

/// A door is nothing else, and hears tickets for nothing else.
fn set_door(map: &mut FederationMap, door: &Door) -> Result<(), EditError> {
    door.check()?;
    let addresses = map.mdts.iter().flat_map(|mdt| &mdt.addresses);
    let addresses = addresses.chain(map.osts.iter().flat_map(|ost| &ost.addresses));
    let servers: BTreeSet<String> =
        addresses.filter_map(|address| principal_at(map, address)).collect();
    let mut names = door.services.iter().chain([&door.principal]);
    if let Some(server) = names.find(|name| servers.contains(*name)) {
        return Err(EditError::ServerNoDoor(server.clone()));
    }
    let doors = security(map)?.doors.get_or_insert_default();
    doors.retain(|known| known.principal != door.principal);
    if doors.len() >= DOORS_MAX {
        return Err(EditError::DoorsFull);
    }
    doors.push(door.clone());
    doors.sort_by(|a, b| a.principal.cmp(&b.principal));
    Ok(())
}

fn remove_door(map: &mut FederationMap, principal: &str) -> Result<(), EditError> {
    let doors = security(map)?.doors.get_or_insert_default();
    let before = doors.len();
    doors.retain(|known| known.principal != principal);
    if doors.len() == before {
        return Err(EditError::NoDoor(principal.to_owned()));
    }
    Ok(())
}

fn set_issuer(map: &mut FederationMap, issuer: &Issuer) -> Result<(), EditError> {
    issuer.check()?;
    let issuers = security(map)?.issuers.get_or_insert_default();
    issuers.retain(|known| known.url != issuer.url);
    if issuers.len() >= ISSUERS_MAX {
        return Err(EditError::IssuersFull);
    }
    issuers.push(issuer.clone());
    issuers.sort_by(|a, b| a.url.cmp(&b.url));
    Ok(())
}

fn remove_issuer(map: &mut FederationMap, url: &str) -> Result<(), EditError> {
    let issuers = security(map)?.issuers.get_or_insert_default();
    let before = issuers.len();
    issuers.retain(|known| known.url != url);
    if issuers.len() == before {
        return Err(EditError::NoIssuer(url.to_owned()));
    }
    Ok(())
}

/// Says the same of an OST twice without complaint, as `lctl` does.
fn set_active(map: &mut FederationMap, index: OstIndex, is_active: bool) -> Result<(), EditError> {
    let ost = map.osts.iter_mut().find(|ost| ost.ost == index);
    ost.ok_or(EditError::NoOst(index))?.is_active = is_active;
    Ok(())
}

fn site_invite(
    map: &mut FederationMap,
    invitation: Invitation,
    now_ms: u64,
) -> Result<(), EditError> {
    let invitations = map.invitations.get_or_insert_default();
    invitations.retain(|known| known.until_ms > now_ms);
    if invitations.len() >= INVITATIONS_MAX {
        return Err(EditError::InvitationsFull);
    }
    invitations.push(invitation);
    Ok(())
}

fn site_uninvite(map: &mut FederationMap, site: &SiteName, now_ms: u64) -> Result<(), EditError> {
    let invitations = map.invitations.get_or_insert_default();
    invitations.retain(|known| known.until_ms > now_ms);
    let before = invitations.len();
    invitations.retain(|known| known.site != *site);
    if invitations.len() == before {
        return Err(EditError::NoInvitation(site.clone()));
    }
    Ok(())
}

/// What the map keeps of an invitation's secret.
pub fn digest(secret: &[u8; 32]) -> [u8; 32] {
    *blake3::hash(secret).as_bytes()
}

/// Gives a new server's targets their numbers, and uses the invitation up.
fn site_join(map: &mut FederationMap, join: &SiteJoin, now_ms: u64) -> Result<(), EditError> {
    let digest = digest(&join.secret);
    let invitations = map.invitations.get_or_insert_default();
    let is_meant = |known: &Invitation| known.digest == digest && known.until_ms > now_ms;
    let place = invitations.iter().position(is_meant).ok_or(EditError::NotInvited)?;
    let site = invitations.remove(place).site;
    if join.osts > OSTS_PER_SERVER_MAX || (join.osts == 0 && !join.has_mdt) {
        return Err(EditError::NothingBrought);
    }
    addresses_check(map, &join.addresses)?;
    if join.has_mdt {
        mdt_add(map, &site, &join.addresses)?;
    }
    osts_add(map, &site, join)?;
    if let (Some(security), Some(principal)) = (&mut map.security, &join.principal) {
        let named = join
            .addresses
            .iter()
            .map(|address| Service { address: address.clone(), principal: principal.clone() });
        security.services.extend(named);
    }
    Ok(())
}

fn addresses_check(map: &FederationMap, addresses: &[String]) -> Result<(), EditError> {
    let is_address = |address: &String| {
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        address.len() <= ADDRESS_BYTES_MAX
            && address.bytes().all(|byte| byte.is_ascii_graphic())
            && port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    if addresses.is_empty() || addresses.len() > ADDRESSES_MAX || !addresses.iter().all(is_address)
    {
        return Err(EditError::NoAddress);
    }
    let of_mdts = map.mdts.iter().flat_map(|mdt| &mdt.addresses);
    let taken = |known: &&String| addresses.contains(known);
    match of_mdts.chain(map.osts.iter().flat_map(|ost| &ost.addresses)).find(taken) {
        Some(address) => Err(EditError::AddressTaken { address: address.clone() }),
        None => Ok(()),
    }
}

fn mdt_add(
    map: &mut FederationMap,
    site: &SiteName,
    addresses: &[String],
) -> Result<(), EditError> {
    let parent = FileId::root_of(MdtIndex(0));
    let taken = || EditError::JunctionTaken(site.clone());
    let name: Name = site.as_str().parse().map_err(|_| taken())?;
    if map.junctions_in(parent).any(|junction| junction.name == name) {
        return Err(taken());
    }
    let mdt = next_index(map)?;
    map.mdts.push(Mdt { mdt, home: site.clone(), addresses: addresses.to_vec() });
    map.junctions.push(Junction { parent, name, mdt });
    Ok(())
}

/// The OSTs go to the pool of the site's name, which is made if need be.
fn osts_add(map: &mut FederationMap, site: &SiteName, join: &SiteJoin) -> Result<(), EditError> {
    let mut added = Vec::new();
    for _ in 0..join.osts {
        let last = map.osts.iter().map(|ost| ost.ost.0).max();
        let ost = OstIndex(next_number(last)?);
        let addresses = join.addresses.clone();
        map.osts.push(Ost { ost, site: site.clone(), addresses, is_active: true });
        added.push(ost);
    }
    let Ok(pool) = site.as_str().parse::<PoolName>() else { return Ok(()) };
    if added.is_empty() {
        return Ok(());
    }
    if map.pool(&pool).is_none() {
        pool_new(map, &pool)?;
    }
    pool_add(map, &pool, &added)
}

/// Ids of files carry it: of a repository, too.
fn next_index(map: &FederationMap) -> Result<MdtIndex, EditError> {
    next_number(map.indexes().map(|index| index.0).max()).map(MdtIndex)
}

fn repository_add(map: &mut FederationMap, add: &RepositoryAdd) -> Result<(), EditError> {
    let RepositoryAdd { name, sources, list, junction } = add;
    repository_mount(map, (name, sources), Catalog::Frozen(*list), junction)
}

fn repository_trust(map: &mut FederationMap, add: &RepositoryTrust) -> Result<(), EditError> {
    let RepositoryTrust { name, sources, keys, junction } = add;
    let is_key = |key: &ByteVec| !key.is_empty() && key.len() <= KEY_BYTES_MAX;
    if keys.is_empty() || keys.len() > KEYS_MAX || !keys.iter().all(is_key) {
        return Err(EditError::NoKey);
    }
    let keys = keys.iter().cloned().map(PublicKey).collect();
    repository_mount(map, (name, sources), Catalog::Signed(keys), junction)
}

fn repository_mount(
    map: &mut FederationMap,
    (name, sources): (&RepositoryName, &[String]),
    catalog: Catalog,
    junction: &Name,
) -> Result<(), EditError> {
    if map.repositories().any(|known| known.name == *name) {
        return Err(EditError::RepositoryExists(name.clone()));
    }
    let is_source = |source: &String| {
        let schemes = ["http://", "https://", "file:///"];
        source.len() <= ADDRESS_BYTES_MAX
            && source.bytes().all(|byte| byte.is_ascii_graphic())
            && schemes
                .iter()
                .any(|scheme| source.len() > scheme.len() && source.starts_with(scheme))
    };
    if sources.is_empty() || sources.len() > ADDRESSES_MAX || !sources.iter().all(is_source) {
        return Err(EditError::NoSource);
    }
    let parent = FileId::root_of(MdtIndex(0));
    if map.junctions_in(parent).any(|known| known.name == *junction) {
        return Err(EditError::NameTaken(junction.clone()));
    }
    let mdt = next_index(map)?;
    map.repositories.get_or_insert_default().push(Repository {
        name: name.clone(),
        mdt,
        sources: sources.to_vec(),
        catalog,
    });
    map.junctions.push(Junction { parent, name: junction.clone(), mdt });
    Ok(())
}

fn repository_remove(map: &mut FederationMap, name: &RepositoryName) -> Result<(), EditError> {
    let known = map.repositories().find(|known| known.name == *name);
    let mdt = known.ok_or_else(|| EditError::NoRepository(name.clone()))?.mdt;
    map.repositories.iter_mut().for_each(|all| all.retain(|known| known.mdt != mdt));
    map.junctions.retain(|junction| junction.mdt != mdt);
    Ok(())
}

fn next_number(last: Option<u16>) -> Result<u16, EditError> {
    last.map_or(Some(0), |last| last.checked_add(1)).ok_or(EditError::NumbersGone)
}

fn pool_mut<'m>(map: &'m mut FederationMap, name: &PoolName) -> Result<&'m mut Pool, EditError> {
    let pool = map.pools.iter_mut().find(|pool| pool.name == *name);
    pool.ok_or_else(|| EditError::NoPool(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Digest;

    const NOW: u64 = 1000;

    fn apply(map: &FederationMap, edit: &MapEdit) -> Result<FederationMap, EditError> {
        super::apply(map, edit, NOW)
    }

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
            invitations: None,
            repositories: None,
        }
    }

    fn pool() -> PoolName {
        "uf".parse().unwrap()
    }

    fn add(osts: &[u16]) -> MapEdit {
        MapEdit::PoolAdd { pool: pool(), osts: osts.iter().map(|&i| OstIndex(i)).collect() }
    }

    #[test]
    fn a_repository_is_mounted_beside_sites_under_a_number_of_its_own() {
        let root = |mdt| Mdt { mdt, home: "uf".parse().unwrap(), addresses: vec!["h:1".into()] };
        let map = FederationMap { mdts: vec![root(MdtIndex(0)), root(MdtIndex(4))], ..map() };
        let name: RepositoryName = "sw.example.org".parse().unwrap();
        let add = RepositoryAdd {
            name: name.clone(),
            sources: vec!["http://h/sw".into()],
            list: Digest::of(b"list"),
            junction: "sw".parse().unwrap(),
        };
        let edit = |add: &RepositoryAdd| MapEdit::RepositoryAdd(add.clone());
        for wrong in [vec![], vec!["ftp://h".into()], vec!["http://".into()]] {
            let add = RepositoryAdd { sources: wrong, ..add.clone() };
            assert_eq!(apply(&map, &edit(&add)), Err(EditError::NoSource));
        }
        let with = apply(&map, &edit(&add)).unwrap();
        let index = MdtIndex(5);
        assert_eq!(with.answerer(index).unwrap()[..], ["repository:sw.example.org"]);
        assert_eq!(with.repository_at("repository:sw.example.org").unwrap().mdt, index);
        assert_eq!(with.junction_of(index).unwrap().name, add.junction);
        assert!(with.mdt(index).is_none() && with.indexes().any(|known| known == index));
        let again = apply(&with, &edit(&add));
        assert_eq!(again, Err(EditError::RepositoryExists(name.clone())));
        let other = RepositoryAdd { name: "b.org".parse().unwrap(), ..add };
        assert!(matches!(apply(&with, &edit(&other)), Err(EditError::NameTaken(_))));
        let without = apply(&with, &MapEdit::RepositoryRemove(name.clone())).unwrap();
        assert!(without.junctions.is_empty() && without.repositories().next().is_none());
        let gone = apply(&without, &MapEdit::RepositoryRemove(name.clone()));
        assert_eq!(gone, Err(EditError::NoRepository(name)));
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
    fn a_pool_has_an_hsm_that_can_be() {
        let map = apply(&map(), &MapEdit::PoolNew(pool())).unwrap();
        let edit = |script: &str| {
            let hsm = Some(Hsm::new(script.to_owned(), "osm".to_owned()));
            MapEdit::PoolHsm { pool: pool(), hsm }
        };
        assert!(matches!(apply(&map, &edit("osm")), Err(EditError::Hsm(_))));
        let with = apply(&map, &edit("/etc/tieline/hsm/osm")).unwrap();
        assert!(with.pool(&pool()).unwrap().hsm.is_some());
        let without = apply(&with, &MapEdit::PoolHsm { pool: pool(), hsm: None }).unwrap();
        assert!(without.pool(&pool()).unwrap().hsm.is_none());
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

    #[test]
    fn a_door_is_nothing_else() {
        let door = |principal: &str, services: &[&str]| Door {
            principal: principal.to_owned(),
            services: services.iter().map(|&service| service.to_owned()).collect(),
            vouches_for: vec![],
            scope: None,
            seconds_max: None,
        };
        let set = |map: &FederationMap, door: &Door| apply(map, &MapEdit::DoorSet(door.clone()));
        let good = door("tieline_door/a@R", &["HTTP/a@R"]);
        assert_eq!(set(&map(), &good), Err(EditError::NoRealm));
        let security = Security {
            realm: "R".to_owned(),
            flavors: Default::default(),
            services: vec![Service { address: "o:1".into(), principal: "afs/o@R".into() }],
            machines: None,
            strangers: None,
            doors: None,
            issuers: None,
        };
        let mut proven = FederationMap { security: Some(security), ..map() };
        proven.osts[0].addresses = vec!["o:1".to_owned()];
        let with = set(&proven, &good).unwrap();
        let known = |map: &FederationMap| map.security.as_ref().unwrap().doors.clone().unwrap();
        assert_eq!(known(&with), std::slice::from_ref(&good));
        let shorter = Door { seconds_max: Some(60), ..good.clone() };
        assert_eq!(known(&set(&with, &shorter).unwrap()), [shorter]);
        for servers in [door("afs/o@R", &[]), door("d/a@R", &["afs/o@R"])] {
            assert!(matches!(set(&with, &servers), Err(EditError::ServerNoDoor(_))));
        }
        let host = door("d/a@R", &["host/a@R"]);
        assert!(matches!(set(&with, &host), Err(EditError::Door(_))));
        let remove = MapEdit::DoorRemove(good.principal.clone());
        let without = apply(&with, &remove).unwrap();
        assert!(known(&without).is_empty());
        assert_eq!(apply(&without, &remove), Err(EditError::NoDoor(good.principal)));
    }

    #[test]
    fn an_issuer_is_named_once() {
        use tieline_types::{IssuerKey, PublicKey};
        let security = Security {
            realm: "R".to_owned(),
            flavors: Default::default(),
            services: vec![],
            machines: None,
            strangers: None,
            doors: None,
            issuers: None,
        };
        let issuer = |user: &str| Issuer {
            url: "https://iam.example/".to_owned(),
            audiences: vec!["https://door".to_owned()],
            keys: vec![IssuerKey { id: None, key: PublicKey::P256([4; 65].to_vec()) }],
            base: vec![],
            users: vec![user.parse().unwrap()],
        };
        let set = |map: &FederationMap, issuer| apply(map, &MapEdit::IssuerSet(issuer));
        assert_eq!(set(&map(), issuer("sub:x=ann")), Err(EditError::NoRealm));
        let proven = FederationMap { security: Some(security), ..map() };
        let one = set(&proven, issuer("sub:x=ann")).unwrap();
        let other = set(&one, issuer("sub:x=bob")).unwrap();
        assert_eq!(other.security.as_ref().unwrap().issuers(), [issuer("sub:x=bob")]);
        let wrong = Issuer { audiences: vec![], ..issuer("sub:x=ann") };
        assert!(matches!(set(&one, wrong), Err(EditError::Issuer(_))));
        let remove = MapEdit::IssuerRemove("https://iam.example/".to_owned());
        let without = apply(&other, &remove).unwrap();
        assert!(without.security.as_ref().unwrap().issuers().is_empty());
        assert!(matches!(apply(&without, &remove), Err(EditError::NoIssuer(_))));
    }

    #[test]
    fn a_site_joins_once_and_in_time() {
        let secret = [7; 32];
        let digest = digest(&secret);
        let site: SiteName = "fnal".parse().unwrap();
        let invite = |until_ms| MapEdit::SiteInvite { site: site.clone(), digest, until_ms };
        let join = SiteJoin {
            secret,
            addresses: vec!["b:7640".into()],
            osts: 2,
            has_mdt: true,
            principal: None,
        };
        let joins =
            |map: &FederationMap, join: &SiteJoin| apply(map, &MapEdit::SiteJoin(join.clone()));
        assert_eq!(joins(&map(), &join), Err(EditError::NotInvited));
        let late = apply(&map(), &invite(NOW)).unwrap();
        assert_eq!(joins(&late, &join), Err(EditError::NotInvited));

        let invited = apply(&map(), &invite(NOW + 1)).unwrap();
        let back = apply(&invited, &MapEdit::SiteUninvite(site.clone())).unwrap();
        assert_eq!(joins(&back, &join), Err(EditError::NotInvited));
        let twice = apply(&back, &MapEdit::SiteUninvite(site.clone()));
        assert_eq!(twice, Err(EditError::NoInvitation(site.clone())));
        let stranger = SiteJoin { secret: [8; 32], ..join.clone() };
        assert_eq!(joins(&invited, &stranger), Err(EditError::NotInvited));
        let homeless = SiteJoin { addresses: vec!["b".into()], ..join.clone() };
        assert_eq!(joins(&invited, &homeless), Err(EditError::NoAddress));
        let idle = SiteJoin { osts: 0, has_mdt: false, ..join.clone() };
        assert_eq!(joins(&invited, &idle), Err(EditError::NothingBrought));

        let joined = joins(&invited, &join).unwrap();
        assert_eq!(joined.mdts.last().unwrap().home, site);
        assert_eq!(joined.junctions.last().unwrap().name.to_string(), "fnal");
        let pool = joined.pool(&"fnal".parse().unwrap()).unwrap();
        assert_eq!(pool.osts, [OstIndex(2), OstIndex(3)]);
        assert_eq!(joins(&joined, &join), Err(EditError::NotInvited));

        let again = apply(&joined, &invite(NOW + 1)).unwrap();
        let address = "b:7640".to_owned();
        assert_eq!(joins(&again, &join), Err(EditError::AddressTaken { address }));
        let other = SiteJoin { addresses: vec!["c:7640".into()], ..join };
        assert_eq!(joins(&again, &other), Err(EditError::JunctionTaken(site.clone())));
        let more = SiteJoin { has_mdt: false, osts: 1, ..other };
        let more = joins(&again, &more).unwrap();
        let pool = more.pool(&"fnal".parse().unwrap()).unwrap();
        assert_eq!(pool.osts.last(), Some(&OstIndex(4)));
    }
}

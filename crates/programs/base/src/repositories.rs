//! Repositories beside servers: who answers for them, and where their chunks come from.

use crate::report::{Usage, chain};
use crate::source::Source;
use std::path::PathBuf;
use std::sync::Arc;
use tieline_auth::{MapCell, MapSigner, MapVerifier};
use tieline_format::map::{Catalog, FederationMap, PublicKey, Repository};
use tieline_frozen::Frozen;
use tieline_net::Dialer;
use tieline_publish::keys;
use tieline_publish::signed::Signed;
use tieline_repositories::{Repositories, Web};
use tieline_servers::Beside;
use tieline_types::{Digest, MdtIndex, RepositoryName, Version};
use tieline_world::World;

/// Signs maps that this process makes for itself: everybody may know it.
const OWN: [u8; 32] = *b"a repository that stands alone  ";

/// A dialer that knows the repositories of a map, too, and the source of their chunks.
pub fn beside(
    others: Arc<dyn Dialer>,
    map: &MapCell,
    world: &World,
) -> (Arc<dyn Dialer>, Arc<Repositories>) {
    let web = Web::new(world);
    let all = Arc::new(Repositories::new(map.clone(), Box::new(move |source| web.shelf(source))));
    let (known, clock) = (all.clone(), world.clock.clone());
    let find = Box::new(move |address: &str| {
        let current = known.map().current();
        match current.map.repository_at(address).map(|repository| &repository.catalog) {
            Some(Catalog::Signed(_)) => Signed::at(address, &known, &clock),
            Some(Catalog::Frozen(_)) | None => Frozen::at(address, &known),
        }
    });
    (Arc::new(Beside { others, find }), all)
}

/// What says which tree of a repository is the right one, as options have it.
#[derive(Clone, Copy)]
pub struct Believed<'b> {
    /// The digest of a frozen list.
    pub list: Option<&'b str>,
    /// Files with master keys, or directories of them.
    pub keys: &'b [PathBuf],
}

/// The map of a repository that is mounted without a federation.
pub fn alone(
    source: &Source,
    name: &RepositoryName,
    from: &[String],
    believed: Believed<'_>,
) -> Result<(MapCell, MapVerifier), Usage> {
    let wrong = |why: String| Usage(format!("{source}: {why}"));
    if from.is_empty() {
        let why = "say where its files are: -o url=http://HOST/cvmfs/FQRN, or url=file:///DIR";
        return Err(wrong(why.into()));
    }
    let catalog = match believed.list {
        Some(_) if !believed.keys.is_empty() => {
            let why = "list= is for frozen lists, pubkey= for what is signed: give one of them";
            return Err(wrong(why.into()));
        }
        Some(list) => {
            let list: Digest = list.parse().map_err(|error| wrong(format!("list: {error}")))?;
            Catalog::Frozen(list)
        }
        None => Catalog::Signed(master_keys(name, believed.keys).map_err(wrong)?),
    };
    let repository = Repository {
        name: name.clone(),
        mdt: MdtIndex(0),
        sources: from.iter().map(|from| named(from, name)).collect(),
        catalog,
    };
    let map = FederationMap {
        fs: source.fs.clone(),
        version: Version(1),
        mdts: vec![],
        junctions: vec![],
        osts: vec![],
        pools: vec![],
        security: None,
        invitations: None,
        repositories: Some(vec![repository]),
    };
    let signer = MapSigner::new(OWN);
    let key = signer.verifier();
    let cell = MapCell::new(key.clone(), signer.sign(&map));
    Ok((cell.map_err(|error| wrong(error.to_string()))?, key))
}

/// As CVMFS has it in its settings: `@fqrn@` is the repository's name, `@org@` what is before its
/// first dot.
pub fn named(url: &str, name: &RepositoryName) -> String {
    let org = name.as_str().split('.').next().unwrap_or_default();
    url.replace("@fqrn@", name.as_str()).replace("@org@", org)
}

/// Where CVMFS keeps the master keys that a machine believes.
const KEYS_DEFAULT: &str = "/etc/cvmfs/keys";
const KEYS_MAX: usize = 64;

/// The master keys in files, or in all files `*.pub` of directories.
pub fn master_keys(name: &RepositoryName, from: &[PathBuf]) -> Result<Vec<PublicKey>, String> {
    let default = [PathBuf::from(KEYS_DEFAULT)];
    let from = match from {
        [] if default[0].is_dir() => &default[..],
        [] => {
            return Err(format!(
                "say who is believed: -o pubkey={name}.pub, the master key's public part (or \
                 list=DIGEST, if it is a frozen list)"
            ));
        }
        from => from,
    };
    let mut files = Vec::new();
    for path in from {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let cannot = |error| format!("pubkey: {}: {error}", path.display());
        for entry in std::fs::read_dir(path).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            files.extend(path.extension().is_some_and(|end| end == "pub").then_some(path));
        }
    }
    files.sort();
    if files.is_empty() || files.len() > KEYS_MAX {
        let count = files.len();
        return Err(format!("pubkey: {count} keys; there must be one, and at most {KEYS_MAX}"));
    }
    let key = |path: &PathBuf| {
        let wrong = |error| format!("pubkey: {}", chain(&error));
        let key = keys::public(path).map_err(wrong)?;
        Ok(PublicKey(key.to_der().into()))
    };
    files.iter().map(key).collect()
}

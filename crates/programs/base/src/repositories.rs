//! Repositories beside servers: who answers for them, and where their chunks come from.

use crate::report::Usage;
use crate::source::Source;
use std::sync::Arc;
use tieline_auth::{MapCell, MapSigner, MapVerifier};
use tieline_format::map::{Catalog, FederationMap, Repository};
use tieline_frozen::Frozen;
use tieline_net::Dialer;
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
    let known = all.clone();
    let find = Box::new(move |address: &str| Frozen::at(address, &known));
    (Arc::new(Beside { others, find }), all)
}

/// The map of a repository that is mounted without a federation.
pub fn alone(
    source: &Source,
    name: &RepositoryName,
    from: &[String],
    list: Option<&str>,
) -> Result<(MapCell, MapVerifier), Usage> {
    let wrong = |why: String| Usage(format!("{source}: {why}"));
    if from.is_empty() {
        return Err(wrong("say where its files are: -o from=file:///DIR, or http://HOST/…".into()));
    }
    let list = list.ok_or_else(|| {
        wrong(
            "say which list is to be believed: -o list=DIGEST, as `tieline repo freeze` printed"
                .into(),
        )
    })?;
    let list: Digest = list.parse().map_err(|error| wrong(format!("list: {error}")))?;
    let repository = Repository {
        name: name.clone(),
        mdt: MdtIndex(0),
        sources: from.to_vec(),
        catalog: Catalog::Frozen(list),
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

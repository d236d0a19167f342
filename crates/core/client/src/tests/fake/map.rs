//! The map of a federation with one MDT and two OSTs, and what its clients are plugged into.

use super::*;

pub fn map(version: u64, mds: &str) -> FederationMap {
    let ost = |index: u16| Ost {
        ost: OstIndex(index),
        site: "uf".parse().unwrap(),
        addresses: vec![format!("oss{index}:1")],
        is_active: true,
    };
    FederationMap {
        fs: "extenci".parse().unwrap(),
        version: Version(version),
        mdts: vec![Mdt {
            mdt: MdtIndex(0),
            home: "uf".parse().unwrap(),
            addresses: vec![mds.to_owned()],
        }],
        junctions: vec![],
        osts: vec![ost(0), ost(1)],
        pools: vec![],
        security: None,
        invitations: None,
    }
}

impl Fake {
    /// With caches.
    pub fn mount_near(self: &Arc<Self>, near: Near) -> Arc<Volume> {
        let parts = Parts { near, ..self.parts() };
        Volume::new(parts, Settings::default())
    }

    pub fn parts(self: &Arc<Self>) -> Parts {
        let signer = MapSigner::new([7; 32]);
        let map = MapCell::new(signer.verifier(), signer.sign(&map(1, "mds:1"))).unwrap();
        let dialer = Arc::new(FakeDialer(self.clone()));
        let (rule, near) = (Rule { flavor: Flavor::Null }, Near::default());
        Parts { world: World::real(), dialer, map, root: ROOT, rule, near }
    }
}

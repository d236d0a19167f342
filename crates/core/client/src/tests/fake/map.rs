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
        repositories: None,
    }
}

impl Fake {
    /// With caches.
    pub fn mount_near(self: &Arc<Self>, near: Near) -> Arc<Volume> {
        self.mount_near_with(near, Settings::default())
    }

    pub fn mount_near_with(self: &Arc<Self>, near: Near, settings: Settings) -> Arc<Volume> {
        Volume::new(Parts { near, ..self.parts() }, settings)
    }

    /// With another MDT, served at `mds:9` and mounted at `psc`.
    pub fn mount_two(self: &Arc<Self>, settings: Settings) -> Arc<Volume> {
        let mut map = map(1, "mds:1");
        let name = "psc".parse().unwrap();
        map.junctions.push(Junction { parent: ROOT, name, mdt: MdtIndex(1) });
        let other =
            Mdt { mdt: MdtIndex(1), addresses: vec!["mds:9".into()], ..map.mdts[0].clone() };
        map.mdts.push(other);
        Volume::new(self.parts_of(&map), settings)
    }

    pub fn parts(self: &Arc<Self>) -> Parts {
        self.parts_of(&map(1, "mds:1"))
    }

    fn parts_of(self: &Arc<Self>, map: &FederationMap) -> Parts {
        let signer = MapSigner::new([7; 32]);
        let map = MapCell::new(signer.verifier(), signer.sign(map)).unwrap();
        let dialer = Arc::new(FakeDialer(self.clone()));
        let (rule, near) = (Rule { flavor: Flavor::Null }, Near::default());
        // With another clock than tokio's this machine would seem to have slept whenever a test
        // works for a while.
        let world = World { clock: World::local(1).0.clock, ..World::real() };
        Parts { world, dialer, map, root: ROOT, rule, near, spool: None }
    }
}

//! The map of a federation with one MDT and two OSTs.

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

//! A federation map, signed or plain: what a client takes from a server it does not trust yet.

use tieline_format::Record;
use tieline_format::map::{FederationMap, SignedMap};

pub fn feed(bytes: &[u8]) {
    if let Ok(signed) = SignedMap::from_bytes(bytes) {
        assert_eq!(SignedMap::from_bytes(&signed.to_bytes()).unwrap(), signed);
        look(&signed.map);
    }
    look(bytes);
}

fn look(bytes: &[u8]) {
    let Ok(map) = FederationMap::from_bytes(bytes) else { return };
    assert_eq!(FederationMap::from_bytes(&map.to_bytes()).unwrap(), map);
    for mdt in &map.mdts {
        assert!(map.mdt(mdt.mdt).is_some());
        let _ = map.junction_of(mdt.mdt);
    }
    for pool in &map.pools {
        assert!(map.pool(&pool.name).is_some());
        for &ost in &pool.osts {
            let _ = map.ost(ost);
        }
    }
    for junction in &map.junctions {
        assert!(map.junctions_in(junction.parent).count() > 0);
    }
}

//! Capabilities, as anybody may show them to an OSS, and what OSSs are told of them.

use tieline_wire::capability::{
    Capability, CapabilityGrant, CapabilityNewsReply, Scope, SignedCapability,
};

pub fn feed(bytes: &[u8]) {
    if let Ok(signed) = tieline_wire::decode::<SignedCapability>(bytes) {
        let _ = tieline_wire::decode::<Capability>(&signed.capability);
    }
    if let Ok(capability) = tieline_wire::decode::<Capability>(bytes) {
        let again = tieline_wire::encode(&capability);
        assert_eq!(tieline_wire::decode::<Capability>(&again).ok(), Some(capability.clone()));
        if let Scope::Own { runs } = &capability.scope {
            assert!(runs.iter().all(|run| run.count == 0 || run.holds(run.first)));
        }
    }
    let _ = tieline_wire::decode::<CapabilityGrant>(bytes);
    let _ = tieline_wire::decode::<CapabilityNewsReply>(bytes);
}

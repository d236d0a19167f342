//! Capabilities, and the calls about them.

use super::*;
use tieline_wire::capability::Scope;
use tieline_wire::capability::*;

pub fn calls(op: Op) -> Vec<Sample> {
    if op == Op::GetCapability {
        let (id, holder) = (Some(file()), Some(Holder([0x40; 16])));
        let call =
            GetCapability { id, is_read: true, is_write: false, offset: Some(1 << 20), holder };
        return pair(call, GetCapabilityReply { grant: Some(grant()) });
    }
    let reply = CapabilityNewsReply {
        keys: vec![CapabilityKey { number: 1 << 40, public: [0x11; 32] }],
        revoked: vec![
            Revocation { below: 70, file: Some(file()), session: None },
            Revocation { below: 71, file: None, session: Some(SessionId(77)) },
        ],
        now_ms: 1_700_000_000_000,
    };
    pair(CapabilityNews { mdt: MdtIndex(1) }, reply)
}

pub fn grant() -> CapabilityGrant {
    let signed = SignedCapability {
        capability: tieline_wire::encode(&capability(own())),
        signature: [0x51; 64],
    };
    CapabilityGrant { signed: tieline_wire::encode(&signed), life_ms: 300_000 }
}

pub fn capability(scope: Scope) -> Capability {
    Capability {
        mdt: MdtIndex(1),
        key: 1 << 40,
        serial: 72,
        session: SessionId(77),
        holder: Holder([0x40; 16]),
        expires_ms: 1_700_000_300_000,
        scope,
    }
}

fn own() -> Scope {
    Scope::Own { runs: vec![FileRun { first: 32_768, count: 8192 }] }
}

/// What is signed, alone.
pub fn alone() -> Vec<Sample> {
    let objects = vec![ObjectName::Chunk(chunk_id()), external()];
    let file = Scope::File { file: file(), is_read: true, is_write: true, objects };
    let sample = |name: &str, scope| {
        let value = capability(scope);
        let bytes = tieline_wire::encode(&value);
        Sample::new(name, value, bytes, |bytes| tieline_wire::decode::<Capability>(bytes))
    };
    let objects = vec![external()];
    let delegated = Scope::Delegated {
        file: tieline_types::FileId(4711),
        is_read: true,
        is_write: false,
        objects,
    };
    let files = Scope::Files { runs: vec![FileRun { first: 4711, count: 3 }] };
    vec![
        sample("capability-file", file),
        sample("capability-files", files),
        sample("capability-own", own()),
        sample("capability-delegated", delegated),
    ]
}

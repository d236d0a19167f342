//! Names of objects in a bucket: `PREFIX/objects/MDT-GRANT-SERIAL`.
//!
//! Numbers have all their digits, so that the order in which a store lists names is that of ids:
//! the ids that people read have fewer, and sort otherwise.

use tieline_types::{Grant, GrantedId, MdtIndex};

const OBJECTS: &str = "objects";

/// Where an OST's objects are, in the bucket.
#[derive(Clone, Debug)]
pub struct Prefix(String);

impl Prefix {
    /// `prefix` without a slash at either end; it may be empty.
    pub fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    /// The key of something beside the objects.
    pub fn beside(&self, name: &str) -> String {
        if self.0.is_empty() { name.to_owned() } else { format!("{}/{name}", self.0) }
    }

    /// What the keys of all objects begin with.
    pub fn objects(&self) -> String {
        self.beside(OBJECTS) + "/"
    }

    pub fn object(&self, chunk: GrantedId) -> String {
        self.objects() + &spell(chunk)
    }

    /// Whose key it is; `None`: no object has such a one.
    pub fn chunk(&self, key: &str) -> Option<GrantedId> {
        read(key.strip_prefix(&self.objects())?)
    }
}

fn spell(chunk: GrantedId) -> String {
    format!("{:04x}-{:016x}-{:016x}", chunk.mdt.0, chunk.grant.0, chunk.serial)
}

fn read(name: &str) -> Option<GrantedId> {
    let mut parts = name.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (mdt, grant, serial) = (number()?, number()?, number()?);
    let id = GrantedId { mdt: MdtIndex(mdt.try_into().ok()?), grant: Grant(grant), serial };
    // One object, one name.
    (spell(id) == name).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_read_back_and_sort_as_ids_do(
            a in (any::<u16>(), any::<u64>(), any::<u64>()),
            b in (any::<u16>(), any::<u64>(), any::<u64>()),
        ) {
            let id = |(mdt, grant, serial)| {
                GrantedId { mdt: MdtIndex(mdt), grant: Grant(grant), serial }
            };
            let prefix = Prefix::new("some/where");
            let key = |id| prefix.object(id);
            prop_assert_eq!(prefix.chunk(&key(id(a))), Some(id(a)));
            prop_assert_eq!(id(a).cmp(&id(b)), key(id(a)).cmp(&key(id(b))));
        }

        #[test]
        fn other_names_are_no_keys(name in "[0-9a-fA-F+-]{30,45}") {
            if let Some(id) = read(&name) {
                prop_assert_eq!(spell(id), name);
            }
        }
    }
}

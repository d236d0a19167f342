//! Frozen lists, which lie where others write.

use tieline_types::{Extent, MdtIndex, RepositoryName};

pub fn feed(bytes: &[u8]) {
    let Ok(name) = "sw.example.org".parse::<RepositoryName>() else { return };
    let Ok(extents) = tieline_frozen::look(bytes, &name, MdtIndex(3)) else { return };
    for extents in extents {
        // What is answered from it is what a reader takes.
        assert!(extents.iter().all(|extent| extent.validate().is_ok()));
        assert!(extents.windows(2).all(|two| matches!(two, [a, b] if a.end() == b.offset)));
        assert!(extents.last().is_none_or(|last| last.end() <= Extent::FILE_SIZE_MAX));
    }
}

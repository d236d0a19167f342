//! A kind of page (1 byte), the length that it states (4 bytes), then an LZ4 block; or the page
//! itself, which is packed first.

use tieline_wire::trees::{BundleList, FilesPage, Packed, TreePage, UNPACKED_MAX};

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let Some((length, block)) = rest.split_first_chunk() else { return };
    let length = u32::from_le_bytes(*length);
    let kind = kind % 6;
    let packed = match kind {
        0 | 1 | 4 => Packed { length, bytes: block.to_vec() },
        // Inventions seldom unpack: so they are packed as they are.
        _ => Packed { length: rest.len() as u32, bytes: lz4_flex::block::compress(rest) },
    };
    match kind {
        0 | 2 => same_again::<TreePage>(&packed),
        1 | 3 => same_again::<FilesPage>(&packed),
        _ => same_again::<BundleList>(&packed),
    }
}

fn same_again<T>(packed: &Packed)
where
    T: for<'b> minicbor::Decode<'b, ()> + minicbor::Encode<()> + PartialEq + std::fmt::Debug,
{
    if let Ok(page) = packed.open::<T>() {
        assert!(packed.length <= UNPACKED_MAX);
        assert_eq!(Packed::new(&page).open::<T>().ok(), Some(page));
    }
}

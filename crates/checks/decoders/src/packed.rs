//! A kind of page (1 byte), the length that it states (4 bytes), then an LZ4 block; or the page
//! itself, which is packed first.

use tieline_wire::trees::{FilesPage, Packed, TreePage, UNPACKED_MAX};

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let Some((length, block)) = rest.split_first_chunk() else { return };
    let length = u32::from_le_bytes(*length);
    let packed = match kind % 4 {
        0 | 1 => Packed { length, bytes: block.to_vec() },
        // Inventions seldom unpack: so they are packed as they are.
        _ => Packed { length: rest.len() as u32, bytes: lz4_flex::block::compress(rest) },
    };
    if kind % 2 == 0 {
        if let Ok(page) = packed.open::<TreePage>() {
            assert!(packed.length <= UNPACKED_MAX);
            assert_eq!(Packed::new(&page).open::<TreePage>().ok(), Some(page));
        }
    } else if let Ok(page) = packed.open::<FilesPage>() {
        assert_eq!(Packed::new(&page).open::<FilesPage>().ok(), Some(page));
    }
}

//! The tail of an object: trailer, then footer. Its checksum is repaired, so that damage reaches
//! what lies behind it.

use tieline_format::object::{ObjectFooter, ObjectTrailer};
use tieline_types::checksum;

pub fn feed(bytes: &[u8]) {
    let Some((cbor, footer)) = bytes.split_last_chunk::<{ ObjectFooter::LENGTH }>() else { return };
    let mut footer = *footer;
    let data_length = u64::from_le_bytes(*footer.first_chunk().unwrap());
    let length = data_length.wrapping_add(bytes.len() as u64);
    if let Ok(footer) = ObjectFooter::decode(&footer, length) {
        let _ = footer.trailer(cbor);
    }
    let check = checksum::crc32c(&[cbor, &footer[..12]].concat());
    footer[12..16].copy_from_slice(&check.to_le_bytes());
    if let Ok(footer) = ObjectFooter::decode(&footer, length)
        && let Ok(trailer) = footer.trailer(cbor)
    {
        assert_eq!(footer.data_length, data_length);
        assert_eq!(checksum::block_count(data_length), trailer.checks.len() as u64);
    }
    let _ = minicbor::decode::<ObjectTrailer>(cbor);
}

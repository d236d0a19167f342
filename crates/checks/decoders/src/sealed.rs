//! A flavor (1 byte), what the prefix says beyond the truth (3 bytes), then a head: from somebody
//! who has the connection's keys, so that it opens.

use crate::block_on;
use tieline_auth::Proof;
use tieline_auth::seal::{self, Transcript};
use tieline_net::frames::{Budget, FrameReader};
use tieline_types::Flavor;
use tieline_wire::FrameHeader;

const FLAVORS: [Flavor; 4] = [Flavor::Krb5n, Flavor::Krb5a, Flavor::Krb5i, Flavor::Krb5p];

pub fn feed(bytes: &[u8]) {
    let Some(([flavor, head_more, bulk, epoch], head)) = bytes.split_first_chunk() else { return };
    let flavor = FLAVORS[usize::from(flavor % 4)];
    let (secret, digest) = ([5; tieline_auth::SECRET], Transcript::new().digest());
    let proof = Proof { peer: "a".into(), own: "b".into(), secret, lifetime: None };
    let (mut sealer, _) = seal::initiator(&proof, flavor, &digest);
    let (_, opener) = seal::acceptor(&proof, flavor, &digest);
    let mut head = head.to_vec();
    // The checksum would stop nearly all of them.
    if let Some((raw, body)) = head.split_first_chunk_mut::<{ FrameHeader::LENGTH }>()
        && let Ok(header) = FrameHeader::decode(raw)
        && header.body_length as usize == body.len()
    {
        *raw = header.encode(body);
    }
    let length = head.len() as u32;
    // Mostly the truth.
    let told = length.wrapping_add(if *head_more < 192 { 0 } else { u32::from(head_more - 192) });
    let bulk = if *bulk < 128 { 0 } else { u32::from(*bulk) << (bulk % 24) };
    let fields = [u32::from_le_bytes(*b"TLP1"), told, bulk, u32::from(epoch / 128)];
    let mut stream: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    let clear = stream.len();
    stream.extend_from_slice(&head);
    let tag = sealer.head(clear, &mut stream);
    stream.extend_from_slice(&tag);
    let mut reader = FrameReader::new(Box::new(std::io::Cursor::new(stream)), Budget::unlimited());
    reader.protect(opener);
    if let Ok(frame) = block_on(reader.next()) {
        assert_eq!(frame.body.len() + FrameHeader::LENGTH, length as usize);
        assert_eq!(frame.header.bulk_length, bulk);
    }
}

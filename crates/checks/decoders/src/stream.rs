//! What somebody sends before anybody knows him: any bytes, as a server reads them up to the end of
//! the handshake.

use crate::block_on;
use tieline_auth::TOKEN_MAX;
use tieline_net::frames::{Budget, FrameReader, InBulk};
use tieline_wire::{FrameKind, Hello, Offer, Refusal};

/// Bodies of who is not known yet.
const BODY_MAX: u32 = 64 << 10;

pub fn feed(bytes: &[u8]) {
    let stream = Box::new(std::io::Cursor::new(bytes.to_vec()));
    let mut reader = FrameReader::new(stream, Budget::unlimited());
    reader.limit(BODY_MAX, TOKEN_MAX as u32);
    let mut read = 0;
    while let Ok(frame) = block_on(reader.next()) {
        read += 1;
        assert!(frame.body.len() <= BODY_MAX as usize);
        let InBulk::Here(bulk, _) = &frame.bulk else { continue };
        assert!(bulk.len() <= TOKEN_MAX);
        match frame.header.kind {
            FrameKind::Hello => drop(tieline_wire::decode::<Hello>(&frame.body)),
            FrameKind::Token => {
                let _ = tieline_wire::decode::<Offer>(&frame.body);
                crate::der::feed(bulk);
            }
            FrameKind::Refused => drop(tieline_wire::decode::<Refusal>(&frame.body)),
            _ => {}
        }
    }
    // Each frame has a header.
    assert!(read <= bytes.len() / 32);
}

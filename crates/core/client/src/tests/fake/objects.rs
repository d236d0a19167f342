//! What the fake's OSTs hold.

use super::*;

impl State {
    pub(super) fn read(&self, read: ReadObject) -> Answer {
        let ObjectName::Chunk(chunk) = read.object else { panic!("only chunks") };
        let Some(whole) = self.chunks.get(&(read.ost, chunk)) else {
            return Err(Failure::new(ErrorKind::Gone, "fake"));
        };
        let block = checksum::BLOCK as u64;
        let offset = read.offset / block * block;
        let end = (read.offset + u64::from(read.length)).div_ceil(block) * block;
        let bytes = whole.slice(offset as usize..(end as usize).min(whole.len()));
        let checks = checksum::block_checks(&bytes);
        let bytes = if self.flips.contains(&read.ost) {
            let mut flipped = bytes.to_vec();
            flipped[0] ^= 1;
            flipped.into()
        } else {
            bytes
        };
        let object_length = whole.len() as u64;
        let reply = ReadObjectReply { offset, checks, object_length };
        Ok((tieline_wire::encode(&reply), bytes))
    }
}

//! What the fake's OSTs hold, and what they keep room for.

use super::*;
use tieline_types::tree;

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
        let damage = self.damage.get(&read.ost).and_then(|at| at.checked_sub(offset));
        let flipped = damage.or(self.flips.contains(&read.ost).then_some(0));
        let mut bytes = bytes.to_vec();
        bytes.iter_mut().skip(flipped.unwrap_or(u64::MAX) as usize).take(1).for_each(|b| *b ^= 1);
        let object_length = whole.len() as u64;
        let range = offset..offset + bytes.len() as u64;
        let proof = read.hashed.and_then(|_| tree::proof_of(whole, &range));
        let reply = ReadObjectReply { offset, checks, object_length, proof };
        Ok((tieline_wire::encode(&reply), bytes.into()))
    }
    pub(super) fn grant_room(&mut self, grant: GrantRoom) -> Answer {
        self.granted_rooms.push((grant.ost, grant.held, grant.wanted));
        let room = self.rooms.get(&grant.ost).copied().unwrap_or(u64::MAX);
        let granted = room.min(grant.wanted);
        let reply = GrantRoomReply { granted, unit: 4096, bytes_free: 1 << 40 };
        done::<GrantRoom>(&reply)
    }
}

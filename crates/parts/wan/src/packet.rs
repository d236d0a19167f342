//! The packets of a TUN device, and those that stand for many.
//!
//! Before each packet lies a header of ten bytes (`virtio_net_hdr`, in the machine's order). With
//! it the kernel hands over up to 64 KiB of one TCP stream at once, under one IP and TCP header,
//! and says into segments of which length it would have to be cut; it takes the same back. So a
//! fast line costs little, and still each segment counts by itself: [`Packet::segments`] says how
//! many there are, [`Packet::wire_bytes`] what they weigh on the line, and [`Packet::part`] cuts
//! some out when others of them are lost.
//!
//! Invariant: bytes that are no packet of this kind are one segment, and never cut.

/// Before each packet of the device.
pub const HEADER: usize = 10;
/// The longest of all, with its header.
pub const PACKET_MAX: usize = HEADER + 65_536;

const NEEDS_SUM: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_TCP4: u8 = 1;
const KIND_TCP6: u8 = 4;
/// A mark beside the kind: of its segments only the first says that the window was reduced.
const KIND_MARKED: u8 = 0x80;
const TCP: u8 = 6;
/// FIN and PSH are said by the last segment only, CWR by the first.
const LAST_FLAGS: u8 = 0x01 | 0x08;
const FIRST_FLAGS: u8 = 0x80;

/// The IP version of a packet as it was read; 0 of what is none.
pub fn version(bytes: &[u8]) -> u8 {
    bytes.get(HEADER).map_or(0, |first| first >> 4)
}

/// A packet as it was read, with its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    stream: Option<Stream>,
}

/// Where things lie in a packet that stands for several segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stream {
    is_v6: bool,
    /// Of the TCP header, from the packet's first byte.
    tcp: usize,
    /// Of the first byte carried.
    payload: usize,
    /// Bytes that a segment carries.
    segment: usize,
}

impl Packet {
    pub fn new(bytes: Vec<u8>) -> Self {
        let stream = Stream::read(&bytes);
        Self { bytes, stream }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Packets of the line that this one stands for: at least 1.
    pub fn segments(&self) -> usize {
        match self.stream {
            None => 1,
            Some(stream) => (self.bytes.len() - stream.payload).div_ceil(stream.segment).max(1),
        }
    }

    /// What the first `segments` weigh on the line, each with its IP and TCP header.
    pub fn wire_bytes(&self, segments: usize) -> usize {
        match self.stream {
            None => self.bytes.len().saturating_sub(HEADER),
            Some(stream) => {
                let carried = self.bytes.len() - stream.payload;
                let head = stream.payload - HEADER;
                carried.min(segments * stream.segment) + segments * head
            }
        }
    }

    /// The segments from `from` up to `to`, as a packet. All of them: the packet itself.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let (Some(stream), count) = (self.stream, self.segments()) else { return self.clone() };
        if from == 0 && to >= count {
            return self.clone();
        }
        let start = stream.payload + from * stream.segment;
        let end = (stream.payload + to * stream.segment).min(self.bytes.len());
        let mut bytes = self.bytes[..stream.payload].to_vec();
        bytes.extend_from_slice(&self.bytes[start..end]);
        stream.mend(&mut bytes, from, to - from, to >= count);
        Self::new(bytes)
    }
}

impl Stream {
    fn read(bytes: &[u8]) -> Option<Self> {
        let kind = *bytes.get(1)? & !KIND_MARKED;
        let segment = usize::from(u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]));
        let sum_start = usize::from(u16::from_ne_bytes([*bytes.get(6)?, *bytes.get(7)?]));
        if ![KIND_TCP4, KIND_TCP6].contains(&kind) || bytes[0] & NEEDS_SUM == 0 || segment == 0 {
            return None;
        }
        let is_v6 = kind == KIND_TCP6;
        let ip = bytes.get(HEADER..)?;
        let (version, tcp, carries) = match is_v6 {
            false => (4, usize::from(ip.first()? & 15) * 4, *ip.get(9)?),
            true => (6, 40, *ip.get(6)?),
        };
        if ip.first()? >> 4 != version || tcp < 20 || carries != TCP || sum_start != tcp {
            return None;
        }
        let length = usize::from(ip.get(tcp + 12)? >> 4) * 4;
        let payload = HEADER + tcp + length;
        (length >= 20 && payload < bytes.len()).then_some(Self {
            is_v6,
            tcp: HEADER + tcp,
            payload,
            segment,
        })
    }

    /// Makes the copied headers those of `count` segments that begin with number `from`.
    fn mend(&self, bytes: &mut [u8], from: usize, count: usize, is_last: bool) {
        if count == 1 {
            bytes[1] = KIND_NONE;
            bytes[4..6].fill(0);
        }
        let ip = HEADER;
        let carried = (bytes.len() - self.tcp) as u16;
        if self.is_v6 {
            bytes[ip + 4..ip + 6].copy_from_slice(&carried.to_be_bytes());
        } else {
            let length = (bytes.len() - ip) as u16;
            let id = u16::from_be_bytes([bytes[ip + 4], bytes[ip + 5]]).wrapping_add(from as u16);
            bytes[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
            bytes[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
            bytes[ip + 10..ip + 12].fill(0);
            let sum = !folded(summed(&bytes[ip..self.tcp]));
            bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let at = self.tcp + 4;
        let sequence = u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let sequence = sequence.wrapping_add((from * self.segment) as u32);
        bytes[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            bytes[self.tcp + 13] &= !LAST_FLAGS;
        }
        if from > 0 {
            bytes[self.tcp + 13] &= !FIRST_FLAGS;
            bytes[1] &= !KIND_MARKED;
        }
        // Who finishes the sum finds here the addresses, the protocol and the length, summed.
        let addresses = if self.is_v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
        let sum = summed(&bytes[addresses]) + u32::from(TCP) + u32::from(carried);
        bytes[self.tcp + 16..self.tcp + 18].copy_from_slice(&folded(sum).to_be_bytes());
    }
}

/// The sum of the Internet, unfolded, over an even number of bytes.
fn summed(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A packet of `carried` bytes that are to be cut into segments of 1,000.
    pub(crate) fn stream(carried: usize, is_v6: bool) -> Packet {
        let ip = if is_v6 { 40 } else { 20 };
        let mut bytes = vec![0; HEADER + ip + 20];
        bytes[0] = NEEDS_SUM;
        bytes[1] = if is_v6 { KIND_TCP6 } else { KIND_TCP4 };
        bytes[4..6].copy_from_slice(&1_000u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(ip as u16).to_ne_bytes());
        bytes[HEADER] = if is_v6 { 0x60 } else { 0x45 };
        bytes[HEADER + if is_v6 { 6 } else { 9 }] = TCP;
        bytes[HEADER + ip + 7] = 9; // sequence number
        bytes[HEADER + ip + 12] = 0x50;
        bytes[HEADER + ip + 13] = 0x18; // ACK, PSH
        bytes.extend((0..carried).map(|byte| (byte / 1_000) as u8));
        Packet::new(bytes)
    }

    fn sequence(packet: &Packet, ip: usize) -> u32 {
        let at = HEADER + ip + 4;
        u32::from_be_bytes(packet.bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn segments_are_weighed_with_their_headers() {
        let packet = stream(2_500, false);
        assert_eq!(packet.segments(), 3);
        assert_eq!(packet.wire_bytes(1), 1_040);
        assert_eq!(packet.wire_bytes(3), 2_500 + 3 * 40);
        assert_eq!(stream(1_001, true).wire_bytes(2), 1_001 + 2 * 60);
    }

    #[test]
    fn parts_follow_each_other() {
        for (is_v6, ip) in [(false, 20), (true, 40)] {
            let packet = stream(2_500, is_v6);
            let (first, rest) = (packet.part(0, 1), packet.part(1, 3));
            assert_eq!((first.segments(), rest.segments()), (1, 2));
            assert_eq!((sequence(&first, ip), sequence(&rest, ip)), (9, 1_009));
            assert_eq!(first.bytes[1], KIND_NONE);
            assert_eq!(rest.bytes.len(), HEADER + ip + 20 + 1_500);
            assert!(rest.bytes.ends_with(&[2]) && first.bytes.ends_with(&[0]));
            // Only the last part says that the program pushed.
            assert_eq!((first.bytes[HEADER + ip + 13], rest.bytes[HEADER + ip + 13]), (0x10, 0x18));
        }
    }

    #[test]
    fn an_ip_header_of_a_part_sums_up() {
        let part = stream(2_500, false).part(1, 2);
        assert_eq!(folded(summed(&part.bytes[HEADER..HEADER + 20])), 0xffff);
    }

    #[test]
    fn other_bytes_are_one_segment() {
        for bytes in [vec![], vec![0; 3], vec![1; 9], vec![0xff; 60], vec![0; 2_000]] {
            let packet = Packet::new(bytes.clone());
            assert_eq!(packet.segments(), 1);
            assert_eq!(packet.part(0, 1).bytes, bytes);
        }
    }
}

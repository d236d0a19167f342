//! Clients behind one address, as most are: what they send comes from another address and port, and
//! only answers find back.
//!
//! TCP over IPv4 only: other IPv4 packets end here, IPv6 passes as it is. [`Nat::rebind`] forgets
//! all and takes the next address, as happens to a laptop that changes its network without knowing:
//! packets of old connections find nobody.
//!
//! Invariants: two connections never share a port; at most as many as there are [`PORTS`] are
//! remembered, and the oldest goes first; packets that are too short for their headers end here.

use crate::packet::HEADER;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Range;

/// The public side.
const PORTS: Range<u16> = 20_000..60_000;
/// Addresses to be had, one after the other.
const PUBLIC: [u8; 3] = [10, 77, 253];
const TCP: u8 = 6;
/// In the header before the packet: the sum of TCP is begun only (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_SUM: u8 = 1;

/// One end of a connection.
type End = (Ipv4Addr, u16);

#[derive(Default)]
pub struct Nat {
    is_on: bool,
    /// Counts addresses that were used up.
    rebound: u8,
    next: u16,
    /// By the client's end and the server's.
    out: BTreeMap<(End, End), u16>,
    back: BTreeMap<u16, (End, End)>,
}

impl Nat {
    pub fn turn(&mut self, is_on: bool) {
        if self.is_on != is_on {
            *self = Self { is_on, rebound: self.rebound, ..Self::default() };
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Forgets all connections, and takes another address.
    pub fn rebind(&mut self) {
        let rebound = self.rebound.wrapping_add(1) % 250;
        *self = Self { is_on: self.is_on, rebound, ..Self::default() };
    }

    fn public(&self) -> Ipv4Addr {
        let [a, b, c] = PUBLIC;
        Ipv4Addr::new(a, b, c, self.rebound + 1)
    }

    /// A packet on its way to servers. Says whether it may go on.
    pub fn leave(&mut self, bytes: &mut [u8]) -> bool {
        if !self.is_on || is_v6(bytes) {
            return true;
        }
        let Some(packet) = Packet::read(bytes) else { return false };
        let key = (packet.source, packet.target);
        let port = match self.out.get(&key) {
            Some(&port) => port,
            None => self.open(key),
        };
        packet.rewrite(bytes, 12, 0, (self.public(), port));
        true
    }

    /// A packet on its way to clients.
    pub fn enter(&mut self, bytes: &mut [u8]) -> bool {
        if !self.is_on || is_v6(bytes) {
            return true;
        }
        let Some(packet) = Packet::read(bytes) else { return false };
        let (address, port) = packet.target;
        let known = self.back.get(&port).filter(|_| address == self.public());
        match known.copied() {
            Some((client, server)) if server == packet.source => {
                packet.rewrite(bytes, 16, 2, client);
                true
            }
            _ => false,
        }
    }

    /// Gives a connection a port.
    fn open(&mut self, key: (End, End)) -> u16 {
        let count = PORTS.end - PORTS.start;
        let port = PORTS.start + self.next % count;
        self.next = (self.next + 1) % count;
        if let Some(old) = self.back.insert(port, key) {
            self.out.remove(&old);
        }
        self.out.insert(key, port);
        port
    }
}

fn is_v6(bytes: &[u8]) -> bool {
    bytes.get(HEADER).is_some_and(|first| first >> 4 == 6)
}

/// What of a packet is read.
struct Packet {
    /// Of the TCP header.
    tcp: usize,
    source: End,
    target: End,
    is_begun_only: bool,
}

impl Packet {
    fn read(bytes: &[u8]) -> Option<Self> {
        let ip = bytes.get(HEADER..)?;
        let length = usize::from(ip.first()? & 15) * 4;
        if ip.first()? >> 4 != 4 || *ip.get(9)? != TCP || length < 20 {
            return None;
        }
        let tcp = ip.get(length..length + 20)?;
        let address = |at: usize| Some(Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some(Self {
            tcp: HEADER + length,
            source: (address(12)?, port(0)),
            target: (address(16)?, port(2)),
            is_begun_only: bytes.first()? & NEEDS_SUM != 0,
        })
    }

    /// Writes another address at `address_at` of the IP header and another port at `port_at` of
    /// TCP's, and mends the sums.
    fn rewrite(&self, bytes: &mut [u8], address_at: usize, port_at: usize, end: End) {
        let at = HEADER + address_at;
        let (old, new) = (word_pair(bytes, at), end.0.octets());
        bytes[at..at + 4].copy_from_slice(&new);
        let new = word_pair(bytes, at);
        mend(bytes, HEADER + 10, &old, &new, true);
        // What is begun is the plain sum of the addresses; else it is complete, and turned around.
        mend(bytes, self.tcp + 16, &old, &new, !self.is_begun_only);
        let at = self.tcp + port_at;
        let old = [u16::from_be_bytes([bytes[at], bytes[at + 1]])];
        bytes[at..at + 2].copy_from_slice(&end.1.to_be_bytes());
        if !self.is_begun_only {
            mend(bytes, self.tcp + 16, &old, &[end.1], true);
        }
    }
}

fn word_pair(bytes: &[u8], at: usize) -> [u16; 2] {
    [0, 2].map(|skip| u16::from_be_bytes([bytes[at + skip], bytes[at + skip + 1]]))
}

/// Takes words out of a sum and puts others in (RFC 1624).
fn mend(bytes: &mut [u8], at: usize, old: &[u16], new: &[u16], is_turned: bool) {
    let sum = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let mut sum = u32::from(if is_turned { !sum } else { sum });
    sum += old.iter().map(|&word| u32::from(!word)).sum::<u32>();
    sum += new.iter().map(|&word| u32::from(word)).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = if is_turned { !(sum as u16) } else { sum as u16 };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: End = (Ipv4Addr::new(10, 77, 254, 2), 40_000);
    const SERVER: End = (Ipv4Addr::new(10, 77, 1, 2), 7640);

    /// A packet without payload and with right sums.
    fn packet(source: End, target: End) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 40];
        bytes[HEADER] = 0x45;
        bytes[HEADER + 9] = TCP;
        bytes[HEADER + 12..HEADER + 16].copy_from_slice(&source.0.octets());
        bytes[HEADER + 16..HEADER + 20].copy_from_slice(&target.0.octets());
        bytes[HEADER + 20..HEADER + 22].copy_from_slice(&source.1.to_be_bytes());
        bytes[HEADER + 22..HEADER + 24].copy_from_slice(&target.1.to_be_bytes());
        bytes[HEADER + 32] = 0x50;
        let sum = !sum_of(&bytes[HEADER..HEADER + 20]);
        bytes[HEADER + 10..HEADER + 12].copy_from_slice(&sum.to_be_bytes());
        let sum = !tcp_sum(&bytes);
        bytes[HEADER + 36..HEADER + 38].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn sum_of(bytes: &[u8]) -> u16 {
        let pairs = bytes.chunks_exact(2);
        let mut sum: u32 =
            pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn tcp_sum(bytes: &[u8]) -> u16 {
        let around = [&bytes[HEADER + 12..HEADER + 20], &[0, TCP, 0, 20]].concat();
        sum_of(&[&around[..], &bytes[HEADER + 20..]].concat())
    }

    fn is_right(bytes: &[u8]) -> bool {
        sum_of(&bytes[HEADER..HEADER + 20]) == 0xffff && tcp_sum(bytes) == 0xffff
    }

    #[test]
    fn answers_find_back() {
        let mut nat = Nat::default();
        nat.turn(true);
        let mut out = packet(CLIENT, SERVER);
        assert!(nat.leave(&mut out) && is_right(&out));
        let seen = Packet::read(&out).unwrap().source;
        assert_ne!(seen, CLIENT);
        let mut back = packet(SERVER, seen);
        assert!(nat.enter(&mut back) && is_right(&back));
        assert_eq!(Packet::read(&back).unwrap().target, CLIENT);
    }

    #[test]
    fn nobody_comes_in_unasked_and_after_a_rebind_nobody_finds_back() {
        let mut nat = Nat::default();
        nat.turn(true);
        assert!(!nat.enter(&mut packet(SERVER, CLIENT)));
        let mut out = packet(CLIENT, SERVER);
        assert!(nat.leave(&mut out));
        let seen = Packet::read(&out).unwrap().source;
        nat.rebind();
        assert!(!nat.enter(&mut packet(SERVER, seen)));
        assert!(nat.leave(&mut out), "a new connection goes out again");
    }

    #[test]
    fn short_packets_end() {
        let mut nat = Nat::default();
        nat.turn(true);
        let whole = packet(CLIENT, SERVER);
        for length in 0..HEADER + 40 {
            assert!(!nat.leave(&mut whole[..length].to_vec()), "{length}");
        }
        nat.turn(false);
        assert!(nat.leave(&mut [0; 3]));
    }
}

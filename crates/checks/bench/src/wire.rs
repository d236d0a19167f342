//! Raw loopback TCP: 1 MiB messages from memory to memory, over one stream.

use crate::Settings;
use crate::figure::{Figure, Unit, take_turns};
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const MESSAGE: usize = 1 << 20;

pub fn measure(settings: &Settings) -> Result<Figure> {
    let workload = Box::new(|| send(settings.size));
    take_turns("raw TCP, 1 stream", Unit::MegabytesPerSecond, settings.turns, workload, Vec::new())
}

/// Sends `size` bytes to another thread; MB/s.
pub fn send(size: u64) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let message = vec![7; MESSAGE];
        let mut left = size;
        while left > 0 {
            let length = left.min(MESSAGE as u64);
            stream.write_all(&message[..length as usize])?;
            left -= length;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut message = vec![0; MESSAGE];
    let start = Instant::now();
    let mut left = size;
    while left > 0 {
        let length = left.min(MESSAGE as u64) as usize;
        stream.read_exact(&mut message[..length])?;
        left -= length as u64;
    }
    let rate = megabytes_per_second(size, start);
    sender.join().ok().context("the sending thread failed")??;
    Ok(rate)
}

pub(crate) fn megabytes_per_second(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
}

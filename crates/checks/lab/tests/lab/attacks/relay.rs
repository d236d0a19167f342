//! Somebody on the way: passes what two ends say to each other, and changes, repeats, leaves out,
//! exchanges or cuts the frames it is told to.
//!
//! Knows where frames begin and end, sealed or not, and no key.

use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tieline_wire::FrameHeader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Before each sealed frame: magic, bytes of head, bytes of bulk, number of the key.
const PREFIX: usize = 16;
const TAG: usize = 16;
const SEGMENT: usize = 256 << 10;

/// In which direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToServer,
    ToClient,
}

/// What is done to the sealed frames of one direction, counted from 0. Under krb5n only the first
/// of each is sealed.
#[derive(Clone)]
pub enum Meddling {
    Nothing,
    /// Inverts a bit of this byte of this frame.
    Flip {
        frame: usize,
        byte: usize,
    },
    Repeat(usize),
    /// This one comes after the next.
    Exchange(usize),
    Drop(usize),
    /// So many bytes of it, and then nothing any more.
    Cut {
        frame: usize,
        bytes: usize,
    },
    /// Whatever this makes of each frame.
    Change(Arc<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>),
    /// Of the frames before any is sealed.
    ChangeOpen(Arc<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>),
}

/// What was heard: frames as they came, to either end.
#[derive(Default)]
pub struct Heard {
    pub open: Vec<Vec<u8>>,
    pub sealed: Vec<Vec<u8>>,
    pub to_client: Vec<Vec<u8>>,
    /// Who spoke, turn by turn: two are a round trip.
    pub turns: Vec<Way>,
}

/// Where a relay leads, and what it does.
pub struct Plan {
    pub server: String,
    pub way: Way,
    pub meddling: Meddling,
    /// So many are passed on; later ones are closed at once.
    pub connections: usize,
    /// Bulk has tags, as under krb5i and krb5p.
    pub is_bulk_sealed: bool,
}

/// A relay to one server.
pub struct Relay {
    pub address: SocketAddr,
    pub heard: Arc<Mutex<Heard>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub async fn start(plan: Plan) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let heard = Arc::<Mutex<Heard>>::default();
        let listens = heard.clone();
        let task = tokio::spawn(async move {
            let mut left = plan.connections;
            let plan = Arc::new(plan);
            while let Ok((near, _)) = listener.accept().await {
                if left == 0 {
                    continue;
                }
                left -= 1;
                let (plan, heard) = (plan.clone(), listens.clone());
                tokio::spawn(async move {
                    // Ends with either end.
                    let _ = pass(near, &plan, heard).await;
                });
            }
        });
        Ok(Self { address, heard, task })
    }
}

async fn pass(near: TcpStream, plan: &Plan, heard: Arc<Mutex<Heard>>) -> Result<()> {
    let far = TcpStream::connect(&plan.server).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let up = direction((near_in, far_out), Way::ToServer, plan, heard.clone());
    let down = direction((far_in, near_out), Way::ToClient, plan, heard);
    tokio::select! {
        biased;
        ended = up => ended,
        ended = down => ended,
    }
}

async fn direction(
    (mut from, mut to): (OwnedReadHalf, OwnedWriteHalf),
    way: Way,
    plan: &Plan,
    heard: Arc<Mutex<Heard>>,
) -> Result<()> {
    let meddling = if plan.way == way { &plan.meddling } else { &Meddling::Nothing };
    let mut sealed = 0;
    let mut later: Option<Vec<u8>> = None;
    loop {
        let (is_sealed, frame) = read_frame(&mut from, plan.is_bulk_sealed).await?;
        {
            let mut heard = heard.lock().expect("nobody panics with it");
            if heard.turns.last() != Some(&way) {
                heard.turns.push(way);
            }
            match (way, is_sealed) {
                (Way::ToClient, _) => heard.to_client.push(frame.clone()),
                (_, true) => heard.sealed.push(frame.clone()),
                (_, false) => heard.open.push(frame.clone()),
            }
        }
        if !is_sealed {
            let frame = match meddling {
                Meddling::ChangeOpen(change) => change(frame),
                _ => frame,
            };
            to.write_all(&frame).await?;
            continue;
        }
        let mut out = vec![frame];
        match meddling {
            Meddling::Flip { frame, byte } if *frame == sealed => {
                let length = out[0].len();
                out[0][byte % length] ^= 1 << (byte % 8);
            }
            Meddling::Repeat(frame) if *frame == sealed => out.push(out[0].clone()),
            Meddling::Exchange(frame) if *frame == sealed => later = out.pop(),
            Meddling::Exchange(frame) if frame + 1 == sealed => out.extend(later.take()),
            Meddling::Drop(frame) if *frame == sealed => out.clear(),
            Meddling::Cut { frame, bytes } if *frame == sealed => {
                to.write_all(&out[0][..*bytes]).await?;
                to.shutdown().await?;
                return Ok(());
            }
            Meddling::Change(change) => out = vec![change(out.remove(0))],
            _ => {}
        }
        sealed += 1;
        for frame in out {
            to.write_all(&frame).await?;
        }
    }
}

/// A whole frame, and whether it is sealed.
async fn read_frame(from: &mut OwnedReadHalf, is_bulk_sealed: bool) -> Result<(bool, Vec<u8>)> {
    let mut frame = vec![0; PREFIX];
    from.read_exact(&mut frame).await?;
    let is_sealed = frame.starts_with(b"TLP1");
    let rest = if is_sealed {
        let number = |at: usize| {
            let bytes = frame.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).context("a prefix")
        };
        let (head, bulk) = (number(4)?, number(8)?);
        let tags = if is_bulk_sealed { bulk.div_ceil(SEGMENT) * TAG } else { 0 };
        head + TAG + bulk + tags
    } else {
        let mut raw = [0; FrameHeader::LENGTH];
        raw[..PREFIX].copy_from_slice(&frame);
        from.read_exact(&mut raw[PREFIX..]).await?;
        let header = FrameHeader::decode(&raw)?;
        frame = raw.to_vec();
        header.body_length as usize + header.bulk_length as usize
    };
    let start = frame.len();
    frame.resize(start + rest, 0);
    from.read_exact(&mut frame[start..]).await?;
    Ok((is_sealed, frame))
}

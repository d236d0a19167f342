//! The loop that moves packets between the devices of all links.
//!
//! One thread: it waits until a device has a packet, a packet has arrived, or somebody ordered
//! something; then it takes in what came and hands out what is due. Other threads leave their
//! orders at its [`Desk`].
//!
//! Invariant: an order waits for a bounded number of packets at most, however many there are.

use crate::lane::{Counts, Lane};
use crate::nat::Nat;
use crate::order::{Change, Order, Versions, Way};
use crate::packet::{self, Packet};
use crate::quality::{Quality, WordError};
use crate::script::Script;
use crate::tun::Tun;
use crate::{Error, control};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// Packets that are taken from a device before others have their turn.
const TURN: usize = 64;

/// Two devices and the line between them.
pub struct Link {
    name: String,
    quality: Quality,
    nat: Nat,
    ip: Versions,
    clients: Side,
    servers: Side,
}

/// A device, and what goes to it.
struct Side {
    tun: Tun,
    lane: Lane,
}

/// The devices at both ends.
pub struct Ends {
    pub clients: Tun,
    pub servers: Tun,
}

/// How a link is.
#[derive(Serialize)]
struct Shown<'a> {
    link: &'a str,
    #[serde(flatten)]
    quality: Quality,
    queue_bytes: usize,
    is_cut_to_servers: bool,
    is_cut_to_clients: bool,
    has_nat: bool,
    ip: Versions,
    to_servers: Counts,
    to_clients: Counts,
}

impl Link {
    pub fn new(name: &str, ends: Ends, quality: Quality, seed: u64) -> Self {
        let side = |tun, seed| Side { tun, lane: Lane::new(quality, seed) };
        Self {
            name: name.to_owned(),
            quality,
            nat: Nat::default(),
            ip: Versions::default(),
            // The directions draw from different seeds, or both would lose the same.
            servers: side(ends.servers, seed),
            clients: side(ends.clients, !seed),
        }
    }

    fn change(&mut self, change: Change, now: Instant) {
        self.quality = change.apply(self.quality);
        match change {
            Change::Cut(way) => {
                self.servers.lane.cut(self.servers.lane.is_cut() || way != Way::ToClients);
                self.clients.lane.cut(self.clients.lane.is_cut() || way != Way::ToServers);
            }
            Change::Heal => {
                self.servers.lane.cut(false);
                self.clients.lane.cut(false);
            }
            Change::Nat(is_on) => self.nat.turn(is_on),
            Change::Rebind => self.nat.rebind(),
            Change::Ip(versions) => self.ip = versions,
            Change::Show => {}
            Change::Rtt(_) | Change::Rate(_) | Change::Loss(_) | Change::Queue(_) => {
                self.servers.lane.change(self.quality, now);
                self.clients.lane.change(self.quality, now);
            }
        }
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            link: &self.name,
            quality: self.quality,
            queue_bytes: self.quality.queue_bytes(),
            is_cut_to_servers: self.servers.lane.is_cut(),
            is_cut_to_clients: self.clients.lane.is_cut(),
            has_nat: self.nat.is_on(),
            ip: self.ip,
            to_servers: self.servers.lane.counts(),
            to_clients: self.clients.lane.counts(),
        }
    }

    /// Takes in what came and hands out what is due. When to look again; `now`: at once.
    fn work(&mut self, now: Instant) -> Option<Instant> {
        let (nat, clients, servers) = (&mut self.nat, &mut self.clients, &mut self.servers);
        let ip = self.ip;
        let passes = |bytes: &[u8]| ip.pass(packet::version(bytes));
        let leaves = |bytes: &mut [u8]| passes(bytes) && nat.leave(bytes);
        let is_more = carry(&mut clients.tun, &mut servers.lane, now, leaves);
        let enters = |bytes: &mut [u8]| passes(bytes) && nat.enter(bytes);
        let is_more = carry(&mut servers.tun, &mut clients.lane, now, enters) | is_more;
        for side in [&mut self.clients, &mut self.servers] {
            while let Some(packet) = side.lane.arrived(now) {
                // What the kernel does not take is lost, as on any line.
                let _ = side.tun.write(packet.bytes());
            }
        }
        if is_more {
            return Some(now);
        }
        [self.clients.lane.due(), self.servers.lane.due()].into_iter().flatten().min()
    }
}

/// Takes packets of a device; says whether more may be there.
fn carry(
    from: &mut Tun,
    lane: &mut Lane,
    now: Instant,
    mut passes: impl FnMut(&mut [u8]) -> bool,
) -> bool {
    for _ in 0..TURN {
        let Some(mut bytes) = from.read() else { return false };
        if passes(&mut bytes) {
            lane.take(Packet::new(bytes), now);
        }
    }
    true
}

/// All links of this process.
pub struct Relay {
    links: Vec<Link>,
    asked: Receiver<Asked>,
    desk: Desk,
}

/// Where other threads leave orders for the relay.
#[derive(Clone)]
pub(crate) struct Desk {
    orders: Sender<Asked>,
    /// Written to when there is an order.
    wake: Arc<OwnedFd>,
    names: Arc<[String]>,
    /// Of the newest script: an older one ends.
    script: Arc<AtomicU64>,
}

/// An order, and where its answer goes.
struct Asked {
    order: Order,
    answer: Sender<String>,
}

impl Relay {
    pub fn new(links: Vec<Link>) -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let wake = Arc::new(wake.map_err(|error| Error::Poll(error.into()))?);
        let (orders, asked) = mpsc::channel();
        let names = links.iter().map(|link| link.name.clone()).collect();
        let desk = Desk { orders, wake, names, script: Arc::default() };
        Ok(Self { links, asked, desk })
    }

    /// Moves packets until the process ends; orders come on a socket at `path`.
    pub fn run(mut self, path: &Path) -> Result<(), Error> {
        control::listen(self.desk.clone(), path)?;
        loop {
            self.turn()?;
        }
    }

    /// One look at all orders and devices, and the wait for the next.
    fn turn(&mut self) -> Result<(), Error> {
        while let Ok(Asked { order, answer }) = self.asked.try_recv() {
            // Who asked may have left.
            let _ = answer.send(self.obey(&order));
        }
        let now = Instant::now();
        let due = self.links.iter_mut().filter_map(|link| link.work(now)).min();
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        if wait == Some(Duration::ZERO) {
            return Ok(());
        }
        self.wait(wait)
    }

    fn wait(&self, wait: Option<Duration>) -> Result<(), Error> {
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let devices = self.links.iter().flat_map(|link| [&link.clients.tun, &link.servers.tun]);
        let all = std::iter::once(self.desk.wake.as_fd()).chain(devices.map(AsFd::as_fd));
        let mut waited: Vec<_> =
            all.map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN)).collect();
        match poll(&mut waited, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::Poll(error.into())),
        }
        // Its namespace was deleted, or it was.
        if waited.iter().any(|device| device.revents().contains(PollFlags::ERR)) {
            return Err(Error::Gone);
        }
        let _ = rustix::io::read(&self.desk.wake, &mut [0u8; 8]);
        Ok(())
    }

    /// Carries an order out, and tells how the links that it meant are, as JSON.
    fn obey(&mut self, order: &Order) -> String {
        let now = Instant::now();
        let is_meant = |link: &Link| order.link.as_ref().is_none_or(|name| *name == link.name);
        let mut shown = Vec::new();
        for link in self.links.iter_mut().filter(|link| is_meant(link)) {
            link.change(order.change, now);
            shown.push(serde_json::to_value(link.shown()).unwrap_or_default());
        }
        serde_json::Value::from(shown).to_string()
    }
}

impl Desk {
    /// Has an order carried out; how the links that it meant are then, as JSON.
    pub fn ask(&self, order: Order) -> Result<String, WordError> {
        self.check(&order)?;
        let (answer, answered) = mpsc::channel();
        // A relay that ended takes the process along: nobody is left to wait.
        let _ = self.orders.send(Asked { order, answer });
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(answered.recv().unwrap_or_default())
    }

    /// Plays a script, in the place of one that is played.
    pub fn play(&self, script: Script) -> Result<(), WordError> {
        script.steps.iter().try_for_each(|(_, order)| self.check(order))?;
        let own = self.script.fetch_add(1, Ordering::Relaxed) + 1;
        let (desk, start) = (self.clone(), Instant::now());
        std::thread::spawn(move || {
            for (time, order) in script.steps {
                std::thread::sleep((start + time).saturating_duration_since(Instant::now()));
                if desk.script.load(Ordering::Relaxed) != own {
                    return;
                }
                // Its links were looked for when it was taken.
                let _ = desk.ask(order);
            }
        });
        Ok(())
    }

    /// Is the link that an order means here?
    fn check(&self, order: &Order) -> Result<(), WordError> {
        match &order.link {
            Some(name) if !self.names.contains(name) => Err(WordError::Link(name.clone())),
            _ => Ok(()),
        }
    }
}

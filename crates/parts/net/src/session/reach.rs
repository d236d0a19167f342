//! Finds the address at which a server can be reached.
//!
//! A server may have several: one per network it is in, the best first. They are tried in that
//! order, each a little after the one before it and without waiting for it; whoever answers first
//! wins. So one that leads nowhere costs a moment, not a timeout.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tieline_world::{Connection, Transport};
use tokio::task::JoinSet;

/// How long the better address has to answer before the next is tried beside it: a round trip round
/// the world.
const STAGGER: Duration = Duration::from_millis(250);

/// The first connection to one of `addresses`, and which it is.
pub(super) async fn reach(
    transport: &Arc<dyn Transport>,
    addresses: &[String],
    patience: Duration,
) -> io::Result<(String, Connection)> {
    if let [only] = addresses {
        return Ok((only.clone(), transport.connect(only, patience).await?));
    }
    let mut dials = JoinSet::new();
    let mut rest = addresses.iter();
    let mut failure = None;
    loop {
        if let Some(address) = rest.next() {
            let (transport, address) = (transport.clone(), address.clone());
            dials.spawn(async move {
                let dialed = transport.connect(&address, patience).await;
                (address, dialed)
            });
        } else if dials.is_empty() {
            let none = || io::Error::new(io::ErrorKind::NotFound, "server without an address");
            return Err(failure.unwrap_or_else(none));
        }
        let has_more = rest.len() > 0;
        tokio::select! {
            biased;
            Some(ended) = dials.join_next() => match ended {
                Ok((address, Ok(connection))) => return Ok((address, connection)),
                Ok((_, Err(error))) => failure = Some(error),
                Err(_) => {}
            },
            () = tokio::time::sleep(STAGGER), if has_more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_world::World;
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn addresses(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_answers_wins() {
        let (world, _) = World::local(1);
        let mut near = world.transport.listen("near:1").await.unwrap();
        let mut far = world.transport.listen("far:1").await.unwrap();
        tokio::spawn(async move { while near.accept().await.is_ok() {} });
        tokio::spawn(async move { while far.accept().await.is_ok() {} });
        let order = addresses(&["near:1", "far:1"]);
        let (reached, _) = reach(&world.transport, &order, PATIENCE).await.unwrap();
        assert_eq!(reached, "near:1");
        let order = addresses(&["nowhere:1", "far:1"]);
        let started = Instant::now();
        let (reached, _) = reach(&world.transport, &order, PATIENCE).await.unwrap();
        assert_eq!(reached, "far:1");
        assert!(started.elapsed() <= STAGGER, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn it_fails_when_all_do() {
        let (world, _) = World::local(1);
        let order = addresses(&["nowhere:1", "nowhere:2"]);
        assert!(reach(&world.transport, &order, PATIENCE).await.is_err());
        assert!(reach(&world.transport, &[], PATIENCE).await.is_err());
    }
}

//! How a process on a real machine dials servers, and how that is protected.

use std::sync::Arc;
use tieline_auth::{Guard, Rule};
use tieline_net::session::SessionDialer;
use tieline_net::{Dialer, SessionSettings};
use tieline_types::Flavor;
use tieline_world::{Congestion, World};

/// What volumes are plugged into on a real machine.
pub fn real_world(guard: &Arc<Guard>) -> (World, Arc<dyn Dialer>, Rule) {
    world_with(guard, Congestion::default())
}

/// The same, with a wish for how connections send.
pub fn world_with(guard: &Arc<Guard>, congestion: Congestion) -> (World, Arc<dyn Dialer>, Rule) {
    let world = World::real_with(congestion);
    let (dialer, rule) = dialer(&world, guard);
    (world, dialer, rule)
}

/// The same in a world that is there.
pub fn dialer(world: &World, guard: &Arc<Guard>) -> (Arc<dyn Dialer>, Rule) {
    let settings = SessionSettings::default();
    let dialer = SessionDialer { world: world.clone(), settings, guard: guard.clone() };
    (Arc::new(dialer), Rule { flavor: Flavor::Null })
}

//! Entering another network namespace, for mounts and verbs whose servers are only reachable there.

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Where ip(8) keeps named network namespaces.
pub const NAMED: &str = "/run/netns";

/// A namespace given by name, as ip(8) knows it, or by path.
pub fn path(name_or_path: &str) -> PathBuf {
    if name_or_path.contains('/') {
        PathBuf::from(name_or_path)
    } else {
        Path::new(NAMED).join(name_or_path)
    }
}

/// Moves this thread, and those it starts from now on, into a network namespace.
pub fn enter(namespace: &Path) -> anyhow::Result<()> {
    let shown = namespace.display();
    let file = std::fs::File::open(namespace)
        .with_context(|| format!("cannot open network namespace {shown}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter network namespace {shown}: this needs root"))
}

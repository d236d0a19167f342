//! The threads that a verb works on, where its file system is reached.

use std::future::Future;
use std::io;
use std::pin::Pin;
use tieline_base::location::Location;
use tokio::runtime::{Builder, Runtime};

/// For a verb.
pub fn of_verb() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

/// Does what a verb does from where its file system is reached, with the tickets that it has there.
pub fn reach<T>(
    location: &Location,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    if let Some(namespace) = &location.netns {
        tieline_machine::namespace::enter(namespace)?;
    }
    location.proving.prepare_verb();
    let runtime = of_verb()?;
    // Boxed: the whole of a runtime would be compiled again for each verb.
    let work: Pin<Box<dyn Future<Output = anyhow::Result<T>> + '_>> = Box::pin(work);
    let result = runtime.block_on(work);
    // Threads that still wait for a KDC hold up nobody.
    runtime.shutdown_background();
    result
}

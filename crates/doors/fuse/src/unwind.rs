//! A future whose panic is its result: one broken request must not take the mount with it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// What the panic said.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

/// The future, with panics caught. It is not polled again after one.
pub async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(move |context| poll_caught(future.as_mut(), context)).await
}

fn poll_caught<F: Future>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, Panicked>> {
    // What the future left half-done is never seen: it is dropped next.
    match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Poll::Ready(Err(Panicked(text.unwrap_or_default())))
        }
    }
}

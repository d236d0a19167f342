//! A few futures at once, taken in the order in which they end.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

type Running<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Futures that run while [`Race::next`] is waited for. Those that are left end when it is dropped.
pub struct Race<'a, T>(Vec<Running<'a, T>>);

impl<T> Default for Race<'_, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, T> Race<'a, T> {
    pub fn add(&mut self, future: impl Future<Output = T> + Send + 'a) {
        self.0.push(Box::pin(future));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What ended next; of several the one that was added first. `None`: nothing runs any more.
    pub async fn next(&mut self) -> Option<T> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for index in 0..self.0.len() {
                if let Some(running) = self.0.get_mut(index)
                    && let Poll::Ready(value) = running.as_mut().poll(context)
                {
                    drop(self.0.remove(index));
                    return Poll::Ready(Some(value));
                }
            }
            Poll::Pending
        })
        .await
    }
}

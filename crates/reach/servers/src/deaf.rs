//! For who asks and does not listen: visitors, and servers among themselves.

use tieline_net::NoticeSink;
use tieline_wire::{Notice, NoticeAnswer, Welcome};
use tokio::time::Instant;

/// Nothing that is said unasked matters.
pub struct Deaf;

#[async_trait::async_trait]
impl NoticeSink for Deaf {
    async fn notice(&self, _notice: Notice) -> NoticeAnswer {
        NoticeAnswer::default()
    }

    fn connected(&self, _welcome: &Welcome) {}

    fn disconnected(&self) {}

    fn renewed(&self, _sent: Instant) {}
}

//! The same over real sockets.

use crate::house::*;
use bytes::Bytes;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::Guard;
use tieline_net::{
    CallContext, Channel, Notifier, Peer, Reply, Response, Server, ServerSettings, Service,
    Session, SessionSettings,
};
use tieline_types::{ErrorKind, Grant, GrantedId, MdtIndex, ObjectName, OstIndex, SessionId};
use tieline_wire::{Hello, Refusal, Request, Welcome, data};
use tieline_world::{Bulk, FileRange, World};

/// Sends ranges of one file.
struct Shelf {
    desk: Arc<Desk>,
    file: Arc<std::fs::File>,
}

#[async_trait::async_trait]
impl Service for Shelf {
    async fn welcome(&self, hello: &Hello, peer: &Peer) -> Result<Welcome, Refusal> {
        self.desk.welcome(hello, peer).await
    }

    fn connected(&self, session: SessionId, notifier: Notifier) {
        self.desk.connected(session, notifier);
    }

    async fn call(&self, context: CallContext, request: Request, bulk: Bytes) -> Response {
        let Request::ReadObject(asked) = request else {
            return self.desk.call(context, request, bulk).await;
        };
        let (file, offset, length) = (self.file.clone(), asked.offset, asked.length);
        let reply =
            data::ReadObjectReply { offset, checks: Vec::new(), object_length: 0, proof: None };
        let bulk = Bulk::File(FileRange::new(file, offset, length));
        Ok(Reply { bulk, ..Reply::new::<data::ReadObject>(&reply) })
    }

    fn heard(&self, _: SessionId) {}

    fn disconnected(&self, session: SessionId) {
        self.desk.disconnected(session);
    }

    async fn goodbye(&self, session: SessionId) {
        self.desk.goodbye(session).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_ranges_arrive_byte_for_byte_beside_small_calls() {
    let content: Vec<u8> =
        (0..24u64 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    let content = Arc::new(content);

    let world = World::real();
    let listener = world.transport.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address().unwrap();
    let desk = Desk::new(&Arc::default(), true);
    let shelf = Arc::new(Shelf { desk: desk.clone(), file: Arc::new(file) });
    let server = Server::start(listener, shelf, Guard::open(), ServerSettings::default());
    let ear = Arc::new(Ear::default());
    let session = Session::start(
        world,
        SessionSettings::default(),
        Guard::open(),
        &[address],
        hello(),
        ear.clone(),
    );

    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..12u64 {
        let (session, content) = (session.clone(), content.clone());
        tasks.spawn(async move {
            let (offset, length) = (at * 1_999_993, 2_000_003);
            let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 1 };
            let object = ObjectName::Chunk(chunk);
            let ost = OstIndex(0);
            let asked =
                data::ReadObject { ost, object, offset, length, capability: None, hashed: None };
            let bytes = exchange(&*session, asked, Bulk::Empty).await.unwrap();
            let expected = &content[offset as usize..][..length as usize];
            assert!(bytes == expected, "range {at}");
            ask(&*session, at * 2).await.unwrap();
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: 1 };
    let (ost, object) = (OstIndex(0), ObjectName::Chunk(chunk));
    let offset = content.len() as u64 - 10;
    let asked =
        data::ReadObject { ost, object, offset, length: 11, capability: None, hashed: None };
    let error = exchange(&*session, asked, Bulk::Empty).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFault, "a file that is too short");
    assert_eq!(ear.log.lock().unwrap().len(), 1, "the connection stands");
    session.close(Duration::from_secs(5)).await;
    assert_eq!(desk.log().last().unwrap(), "goodbye 1");
    server.stop();
    server.ended().await;
}

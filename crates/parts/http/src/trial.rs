//! For tests: functions as handlers, and peers that say what they were told to, byte for byte.

use crate::client::{Client, Settings};
use crate::server::{self, Handler, Request, Response, Server};
use crate::tls::{ClientTls, Roots};
use crate::url::Url;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_world::{Connection, LocalTransport, Transport, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) struct By<F>(pub F);

#[async_trait::async_trait]
impl<F, R> Handler for By<F>
where
    F: Fn(Request) -> R + Send + Sync,
    R: Future<Output = Response> + Send,
{
    async fn answer(&self, request: Request) -> Response {
        (self.0)(request).await
    }
}

/// A world with a client.
pub(crate) struct Trial {
    pub world: World,
    pub transport: Arc<LocalTransport>,
    pub client: Client,
}

impl Trial {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let (world, transport) = World::local(7);
        let tls = ClientTls::new(&world.clock, Roots::none(), None);
        let client = Client::new(&world, tls.unwrap(), settings);
        Self { world, transport, client }
    }

    pub async fn serve<F, R>(&self, host: &str, answer: F) -> Server
    where
        F: Fn(Request) -> R + Send + Sync + 'static,
        R: Future<Output = Response> + Send + 'static,
    {
        self.serve_with(host, server::Settings::default(), answer).await
    }

    pub async fn serve_with<F, R>(
        &self,
        host: &str,
        settings: server::Settings,
        answer: F,
    ) -> Server
    where
        F: Fn(Request) -> R + Send + Sync + 'static,
        R: Future<Output = Response> + Send + 'static,
    {
        let address = format!("{host}:80");
        Server::start(&self.world, &address, None, settings, Arc::new(By(answer))).await.unwrap()
    }

    /// A peer that reads heads and answers each with the next of these, then closes. What it read
    /// is kept.
    pub async fn say(&self, host: &str, answers: &[&'static str]) -> Arc<Mutex<Vec<String>>> {
        let mut listener = self.transport.listen(&format!("{host}:80")).await.unwrap();
        let (heard, answers) = (Arc::new(Mutex::new(Vec::new())), answers.to_vec());
        let kept = heard.clone();
        tokio::spawn(async move {
            for answer in answers {
                let mut connection = listener.accept().await.unwrap();
                let head = read_head(&mut connection).await;
                kept.lock().unwrap().push(head);
                let _ = connection.writer.write_all(answer.as_bytes()).await;
                let _ = connection.writer.shutdown().await;
                // What was sent is read before the end is seen.
                tokio::spawn(async move {
                    let mut rest = Vec::new();
                    let _ = connection.reader.read_to_end(&mut rest).await;
                });
            }
            std::future::pending::<()>().await
        });
        heard
    }

    pub async fn connect(&self, host: &str) -> Connection {
        let address = format!("{host}:80");
        self.transport.connect(&address, Duration::from_secs(1)).await.unwrap()
    }
}

pub(crate) fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

pub(crate) async fn read_head(connection: &mut Connection) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match connection.reader.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Says something, and reads until the other end closes.
pub(crate) async fn ask(mut connection: Connection, text: &[u8]) -> String {
    // It may close before it has all.
    let _ = connection.writer.write_all(text).await;
    let mut answer = Vec::new();
    let _ = connection.reader.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

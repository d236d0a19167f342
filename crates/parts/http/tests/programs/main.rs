//! The client and the server against programs of others: curl, nginx, Python's `http.server`, and
//! openssl, which makes the certificates.
//!
//! A test fails if its program is missing: `crates/checks/lab/setup.sh system` installs them.
//! Everything is on loopback, in a folder of its own, and ends with the test.

mod authority;
mod curl;
mod nginx;
mod python;
mod secure;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tieline_http::client::{Client, Settings};
use tieline_http::server::{Handler, Request, Response};
use tieline_http::tls::{ClientTls, Roots};
use tieline_http::url::Url;
use tieline_world::World;

/// A function as a handler.
struct By<F>(F);

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

fn by<F, R>(answer: F) -> Arc<dyn Handler>
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    Arc::new(By(answer))
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

/// A client of http.
fn plain_client(world: &World) -> Client {
    let tls = ClientTls::new(&world.clock, Roots::none(), None).unwrap();
    Client::new(world, tls, Settings::default())
}

/// Bytes that do not repeat soon.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A program that is ended with its test.
struct Program(Child);

impl Program {
    fn start(mut command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{name} is needed here: {error}")))
    }

    /// Until something listens at the port.
    async fn wait_for(&mut self, port: u16) {
        for _ in 0..500 {
            if tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                return;
            }
            if let Some(status) = self.0.try_wait().unwrap() {
                panic!("the program ended: {status}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nothing listens at {port}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

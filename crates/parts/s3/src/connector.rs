//! Requests of `object_store`, sent by our own HTTP client: its limits, its TLS, the world's
//! transport. Nothing else in the program opens connections for it.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use std::fmt;
use std::time::Duration;
use tieline_http::body::{Body, BodyError, Pieces};
use tieline_http::client::{Client, Request, Settings};
use tieline_http::tls::{ClientTls, Roots, RootsFrom, TlsError};
use tieline_http::url::{Scheme, Url};
use tieline_http::{Error, Pace};
use tieline_world::World;

/// One request, its body and that of the answer.
pub(crate) const REQUEST_PATIENCE: Duration = Duration::from_secs(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Idle stores that answer nothing are found out sooner than slow ones.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);
const PACE: Pace = Pace { bytes: 16 << 10, within: Duration::from_secs(10) };
/// The largest chunk with its tail; a page of a list is far smaller.
const ANSWER_MAX: usize = (64 << 20) + (1 << 20);

/// Makes clients for `object_store`.
#[derive(Clone)]
pub(crate) struct Connector {
    client: Client,
}

impl Connector {
    /// `at_once`: connections. Of `authorities` the system's are believed unless one is named.
    pub fn new(
        world: &World,
        endpoint: &Url,
        authorities: Option<&std::path::Path>,
        at_once: usize,
    ) -> Result<Self, TlsError> {
        let roots = match (endpoint.origin.scheme, authorities) {
            (Scheme::Http, _) => Roots::none(),
            (Scheme::Https, Some(path)) => Roots::load(&[RootsFrom::File(path.to_owned())])?,
            (Scheme::Https, None) => Roots::load(&[RootsFrom::System])?,
        };
        let tls = ClientTls::new(&world.clock, roots, None)?;
        let settings = Settings {
            connect: CONNECT_PATIENCE,
            handshake: CONNECT_PATIENCE,
            head: HEAD_PATIENCE,
            turn: REQUEST_PATIENCE,
            pace: PACE,
            connections_per_host: at_once,
            connections: at_once,
            ..Settings::default()
        };
        Ok(Self { client: Client::new(world, tls, settings) })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let wrong = |source| Error::Url { text: head.uri.path().to_owned(), source };
        let url = Url::parse(&head.uri.to_string()).map_err(wrong).map_err(told)?;
        let mut sent = Request::new(head.method.clone(), url)
            // A signature is good for one place only.
            .without_redirects()
            .within(REQUEST_PATIENCE);
        sent.headers = head.headers;
        let sent = with_body(sent, body).await;
        let response = self.client.send(sent).await.map_err(told)?;
        let (status, headers) = (response.status, response.headers);
        let bytes = response.body.whole(ANSWER_MAX).await.map_err(told)?;
        let mut answer = HttpResponse::new(bytes.into());
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }
}

/// The body is in memory already, in one piece or two.
async fn with_body(request: Request, mut body: HttpRequestBody) -> Request {
    let mut pieces: Vec<Bytes> = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        pieces.extend(frame.into_data().ok().filter(|piece| !piece.is_empty()));
    }
    if pieces.len() < 2 {
        return request.bytes(pieces.pop().unwrap_or_default());
    }
    let length = pieces.iter().map(|piece| piece.len() as u64).sum();
    request.body_again(move || Body::pieces(InMemory(pieces.clone().into_iter()), Some(length)))
}

struct InMemory(std::vec::IntoIter<Bytes>);

#[async_trait::async_trait]
impl Pieces for InMemory {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        Ok(self.0.next())
    }
}

/// Whatever is asked here can be asked twice: a put that was carried out finds itself. So all that
/// may pass is tried again.
fn told(error: Error) -> HttpError {
    let kind = match error.is_worth_trying_again() {
        true => HttpErrorKind::Request,
        false => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

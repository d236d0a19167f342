//! How two ends of a connection prove themselves, before anything else is said.
//!
//! ```text
//! dialing end                               answering end
//! Hello, Token(first token)      ─────────▶ both rules: the flavor
//!                                ◀───────── Token(Offer, answer token)
//!                                ◀═════════ Welcome, protected
//! requests, protected            ═════════▶
//! ```
//!
//! One round trip, and the service ticket's if it is not cached. The hello goes into the channel
//! bindings of the first token, and all three into the keys ([`Transcript`]): who changes a word of
//! them on the way gets a connection on which nothing opens. Under flavor null the hello is
//! answered with the welcome at once, as ever.
//!
//! Knows neither sessions nor services.
//!
//! Invariants: steps that may block run where they harm nobody, and only so many at once; a token
//! has at most [`TOKEN_MAX`] bytes; neither end goes below its own rule.

use crate::frames::{Frame, FrameReader, FrameWriter, InBulk, OutFrame, ReadError};
use bytes::Bytes;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tieline_auth::gss::Tickets;
use tieline_auth::seal::{self, Transcript};
use tieline_auth::{Guard, Mechanism, Proof, Step, TOKEN_MAX, Trouble};
use tieline_types::{ErrorKind, Flavor, RequestNumber};
use tieline_wire::{BodyError, CredentialKind, FrameKind, Hello, Offer};
use tieline_world::Bulk;
use tokio::time::Instant;

/// A hello and an offer are short.
pub(crate) const BODY_MAX: u32 = 64 << 10;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("cannot send")]
    Send(#[from] io::Error),
    #[error("no answer")]
    Read(#[from] ReadError),
    #[error("the offer cannot be read")]
    Offer(#[source] BodyError),
    #[error("{0:?} instead of a token")]
    Unexpected(FrameKind),
    #[error(transparent)]
    Trouble(#[from] Trouble),
    /// It lies in what came before anything was proven: anybody may have sent that.
    #[error(transparent)]
    Heard(Trouble),
}

/// What a proven connection is.
pub(crate) struct Proven {
    pub flavor: Flavor,
    /// Who is at the other end; nobody knows under flavor null.
    pub peer: Option<String>,
    /// When the proof ends.
    pub until: Option<Instant>,
}

/// What the server says after our hello: its welcome or refusal is the next frame.
pub(crate) struct Dialed {
    pub proven: Proven,
    pub answer: Frame,
    /// The hello as it was sent.
    pub hello: Hello,
    pub hello_sent: Instant,
}

/// Says hello and proves ourselves, as the rules want it.
pub(crate) async fn dial(
    guard: &Guard,
    hello: &Hello,
    (address, own, tickets): (&str, Option<IpAddr>, Tickets),
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<Dialed, HandshakeError> {
    let dialing = guard.dialing(hello.role, address, own, tickets)?;
    let flavor = hello.flavor.max(dialing.flavor);
    let mut hello = Hello { flavor, credential: CredentialKind::None, ..hello.clone() };
    let mut transcript = Transcript::new();
    let Some((_, mechanism)) = dialing.proofs.first() else {
        let hello_sent = say_hello(&hello, None, writer).await?;
        let answer = reader.next().await?;
        return Ok(Dialed { proven: Proven::nothing(), answer, hello, hello_sent });
    };
    hello.credential = mechanism.kind();
    transcript.add(&tieline_wire::encode(&hello));
    let binding = transcript.digest();
    let (target, mechanism, step) = begin(guard, dialing.proofs, binding).await?;
    let token = step.token.unwrap_or_default();
    transcript.add(&token);
    let hello_sent = say_hello(&hello, Some(token), writer).await?;
    let answer = reader.next().await?;
    if answer.header.kind != FrameKind::Token {
        // A refusal; or a welcome without a proof, of which the caller makes what it is worth.
        return Ok(Dialed { proven: Proven::nothing(), answer, hello, hello_sent });
    }
    let (offer, token) = read_token(answer)?;
    transcript.add(&offer);
    transcript.add(&token);
    let offer: Offer = tieline_wire::decode(&offer).map_err(HandshakeError::Offer)?;
    let step = take_step(guard, mechanism, Some(token), binding).await;
    let (_, step) = step.map_err(HandshakeError::Heard)?;
    let proof = step.proof.ok_or(HandshakeError::Heard(Trouble::NotMutual))?;
    guard.check_server(&proof, &target).map_err(HandshakeError::Heard)?;
    check_flavor(offer.flavor, hello.flavor).map_err(HandshakeError::Heard)?;
    let (sealer, opener) = seal::initiator(&proof, offer.flavor, &transcript.digest());
    reader.protect(opener);
    writer.protect(sealer);
    let answer = reader.next().await?;
    Ok(Dialed { proven: Proven::of(&proof, offer.flavor), answer, hello, hello_sent })
}

/// Hears the proof of who said `hello`; from then on both directions are protected.
pub(crate) async fn answer(
    guard: &Guard,
    hello: &Hello,
    said: &[u8],
    peer: Option<IpAddr>,
    (reader, writer): (&mut FrameReader, &mut FrameWriter),
) -> Result<Proven, HandshakeError> {
    let answering = guard.answering(hello, peer)?;
    let is_proof_coming = hello.credential != CredentialKind::None;
    let first = if is_proof_coming { Some(read_token(reader.next().await?)?.1) } else { None };
    let (Some(mechanism), Some(first)) = (answering.mechanism, first) else {
        return Ok(Proven::nothing());
    };
    let mut transcript = Transcript::new();
    transcript.add(said);
    let binding = transcript.digest();
    transcript.add(&first);
    let (_, step) = take_step(guard, mechanism, Some(first), binding).await?;
    let proof = step.proof.ok_or(Trouble::NotMutual)?;
    guard.check_caller(hello, &proof)?;
    let offer = tieline_wire::encode(&Offer { flavor: answering.flavor });
    let token = Bytes::from(step.token.unwrap_or_default());
    transcript.add(&offer);
    transcript.add(&token);
    let frame = OutFrame::new(FrameKind::Token, RequestNumber(0), offer, Bulk::from(token));
    writer.write(&frame).await?;
    writer.flush().await?;
    let (sealer, opener) = seal::acceptor(&proof, answering.flavor, &transcript.digest());
    reader.protect(opener);
    writer.protect(sealer);
    Ok(Proven::of(&proof, answering.flavor))
}

impl Proven {
    fn nothing() -> Self {
        Self { flavor: Flavor::Null, peer: None, until: None }
    }

    fn of(proof: &Proof, flavor: Flavor) -> Self {
        // A proof that never ends in any clock's terms never ends.
        let until = proof.lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime));
        Self { flavor, peer: Some(proof.peer.clone()), until }
    }
}

impl HandshakeError {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Send(_) | Self::Read(_) => ErrorKind::Disconnected,
            Self::Offer(_) | Self::Unexpected(_) => ErrorKind::Protocol,
            // The KDC may be back soon; all else wants somebody to do something.
            Self::Trouble(trouble) | Self::Heard(trouble) => match trouble {
                Trouble::NoKdc { .. } | Trouble::Late { .. } | Trouble::Ended => ErrorKind::Timeout,
                _ => ErrorKind::Unauthenticated,
            },
        }
    }
}

/// Both ends' rules hold, whoever else says what.
pub(crate) fn check_flavor(offered: Flavor, wanted: Flavor) -> Result<(), Trouble> {
    if offered < wanted { Err(Trouble::TooWeak { offered, wanted }) } else { Ok(()) }
}

async fn say_hello(
    hello: &Hello,
    token: Option<Vec<u8>>,
    writer: &mut FrameWriter,
) -> Result<Instant, HandshakeError> {
    let body = tieline_wire::encode(hello);
    let none = RequestNumber(0);
    let sent = Instant::now();
    writer.write(&OutFrame::new(FrameKind::Hello, none, body, Bulk::Empty)).await?;
    if let Some(token) = token {
        let bulk = Bulk::from(Bytes::from(token));
        writer.write(&OutFrame::new(FrameKind::Token, none, Vec::new(), bulk)).await?;
    }
    writer.flush().await?;
    Ok(sent)
}

/// The body and the token of a frame that must be one.
fn read_token(frame: Frame) -> Result<(Bytes, Vec<u8>), HandshakeError> {
    if frame.header.kind != FrameKind::Token {
        return Err(HandshakeError::Unexpected(frame.header.kind));
    }
    let length = frame.header.bulk_length as usize;
    match frame.bulk {
        InBulk::Here(token, _) if length <= TOKEN_MAX => Ok((frame.body, token.to_vec())),
        _ => Err(HandshakeError::Heard(Trouble::TokenTooLong { length, limit: TOKEN_MAX })),
    }
}

/// The first step towards the first server whom the KDC knows.
async fn begin(
    guard: &Guard,
    proofs: Vec<(String, Box<dyn Mechanism>)>,
    binding: seal::Digest,
) -> Result<(String, Box<dyn Mechanism>, Step), Trouble> {
    let mut unknown = None;
    for (target, mechanism) in proofs {
        match take_step(guard, mechanism, None, binding).await {
            Ok((mechanism, step)) => return Ok((target, mechanism, step)),
            // If the KDC knows none of them, the likeliest is the one to be told of.
            Err(trouble @ Trouble::UnknownServer { .. }) => _ = unknown.get_or_insert(trouble),
            Err(trouble) => return Err(trouble),
        }
    }
    Err(unknown.unwrap_or(Trouble::NotMutual))
}

/// One step of a mechanism, where it may take its time.
async fn take_step(
    guard: &Guard,
    mut mechanism: Box<dyn Mechanism>,
    token: Option<Vec<u8>>,
    binding: seal::Digest,
) -> Result<(Box<dyn Mechanism>, Step), Trouble> {
    if !mechanism.may_block() {
        let step = mechanism.step(token.as_deref(), &binding)?;
        return Ok((mechanism, step));
    }
    let other = |text: String| Trouble::Other { text };
    let place = guard.steps().acquire_owned();
    let place = tokio::time::timeout(STEP_PATIENCE, place).await.map_err(|_| late())?;
    let place = place.map_err(|error| other(error.to_string()))?;
    let work = tokio::task::spawn_blocking(move || {
        // Held until the library comes back, also when nobody waits for it any more.
        let _place = place;
        let step = mechanism.step(token.as_deref(), &binding);
        step.map(|step| (mechanism, step))
    });
    let done = tokio::time::timeout(STEP_PATIENCE, work).await.map_err(|_| late())?;
    done.map_err(|error| other(error.to_string()))?
}

/// What a step may take: a KDC that does not answer within this is away.
const STEP_PATIENCE: Duration = Duration::from_secs(8);

fn late() -> Trouble {
    Trouble::Late { seconds: STEP_PATIENCE.as_secs() }
}

//! Who asks: by the token or the ticket that comes with a request.
//!
//! Evidence comes in `Authorization`, or, of clients that follow a redirect or hand out a link, in
//! the query (`authz=`). What it says the MDSs judge; here it is only taken out. It stands in no
//! log and no answer.

use crate::WebDav;
use crate::refusal::Refusal;
use crate::spnego;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;
use tieline_files::Who;
use tieline_http::StatusCode;
use tieline_http::header::{AUTHORIZATION, HeaderValue};
use tieline_http::server::Request;
use tieline_people::visitors::{Visitor, Wish};
use tieline_wire::identity::Evidence;

/// The service that a ticket is for.
const SERVICE: &str = "HTTP";

/// Who asks, for as long as he is answered.
#[derive(Clone)]
pub struct Visit {
    pub who: Who,
    /// What he is told of who is there, if he wants to know.
    pub answer: Option<HeaderValue>,
    /// Servers may have to be shown him again until the end.
    _visitor: Arc<Visitor>,
}

impl WebDav {
    /// Who asks, or what he is to show.
    pub(crate) async fn who(&self, request: &Request) -> Result<Visit, Refusal> {
        let (evidence, is_wrapped) = self.evidence(request)?;
        let is_once = matches!(evidence, Evidence::Ticket(_));
        let wish = Wish { evidence, scope: None, life: None };
        let met = match is_once {
            true => self.visitors.meet(wish).await,
            false => self.visitors.meet_again(wish).await,
        };
        let visitor = met.map_err(Refusal::of_visitor)?;
        let (caller, scope) = (visitor.caller().clone(), visitor.scope().cloned());
        let answer = visitor.answer().map(|answer| match is_wrapped {
            true => spnego::wrapped(answer),
            false => answer.to_vec(),
        });
        let answer = answer.map(|answer| format!("Negotiate {}", STANDARD.encode(answer)));
        let answer = answer.and_then(|answer| answer.try_into().ok());
        Ok(Visit { who: Who { caller, scope }, answer, _visitor: visitor })
    }

    /// What shows it, and whether it was wrapped.
    fn evidence(&self, request: &Request) -> Result<(Evidence, bool), Refusal> {
        let mut headers = request.headers.get_all(AUTHORIZATION).iter();
        if let Some(header) = headers.next() {
            if headers.next().is_some() {
                let text = "a request has one header `Authorization`";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
            }
            return self.shown(header.to_str().unwrap_or_default());
        }
        let pairs = request.query_pairs().map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, format!("the query cannot be read: {error}"))
        })?;
        match pairs.into_iter().find(|(name, _)| name == "authz") {
            Some((_, text)) if text.contains(' ') => self.shown(&text),
            Some((_, token)) => Ok((Evidence::Token(token.into_bytes()), false)),
            None => Err(self.anonymous()),
        }
    }

    /// What stands in `Authorization`.
    fn shown(&self, text: &str) -> Result<(Evidence, bool), Refusal> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text, ""));
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") && !rest.is_empty() {
            return Ok((Evidence::Token(rest.as_bytes().to_vec()), false));
        }
        if scheme.eq_ignore_ascii_case("negotiate") && !rest.is_empty() {
            let ticket = STANDARD.decode(rest).map_err(|_| {
                Refusal::new(StatusCode::BAD_REQUEST, "what follows `Negotiate` is no base64")
            })?;
            let within = spnego::unwrapped(&ticket).to_vec();
            return Ok((Evidence::Ticket(within), spnego::is_wrapped(&ticket)));
        }
        Err(self.anonymous())
    }

    fn anonymous(&self) -> Refusal {
        let kerberos = match self.visitors.service(SERVICE) {
            Some(service) => format!(", or a Kerberos ticket for {service} (curl --negotiate)"),
            None => String::new(),
        };
        let text = format!(
            "/{} is nobody's to look at without a name: send a token of an issuer that the \
             federation knows (Authorization: Bearer TOKEN){kerberos}",
            self.name
        );
        Refusal::new(StatusCode::UNAUTHORIZED, text)
    }

    /// How somebody may show who he is.
    pub(crate) fn challenges(&self) -> Vec<HeaderValue> {
        let bearer = format!("Bearer realm=\"{}\"", self.name);
        let mut challenges = vec![];
        challenges.extend(HeaderValue::from_str(&bearer).ok());
        if self.visitors.service(SERVICE).is_some() {
            challenges.push(HeaderValue::from_static("Negotiate"));
        }
        challenges
    }
}

//! Who is there.
//!
//! The door names one way to prove oneself, Kerberos, by the service that the federation map has
//! for it. What the client sends then goes to the MDSs as it is: the door has no key to open it.
//!
//! Whoever has no ticket, or one that no MDS knows, is let log in all the same and is told with
//! each request why he gets nothing, and what to do: stock clients show that, and say nothing of a
//! failure to log in. So a second way is named, by which such clients come this far; nothing that
//! is said by it is believed.
//!
//! Invariant: nobody is a [`Guest`] whom no MDS proved.

use crate::refusal::{Code, Refusal, code_of};
use crate::server::Shared;
use bytes::Bytes;
use std::sync::Arc;
use tieline_files::Who;
use tieline_people::visitors::{Visitor, Wish};
use tieline_types::ErrorKind;
use tieline_wire::identity::Evidence;

/// The first part of the service's name.
const SERVICE: &str = "xrootd";
const KERBEROS: [u8; 4] = *b"krb5";
/// What clients fall back to that have no ticket: a name that nothing proves.
const UNPROVED: [u8; 4] = *b"unix";

/// Somebody who was proved.
pub struct Guest {
    pub visitor: Arc<Visitor>,
    pub who: Who,
}

/// What came of showing something.
pub enum Met {
    Guest(Arc<Guest>),
    /// Gets this with whatever he asks for.
    Stranger(Refusal),
}

/// The ways to prove oneself, as clients read them.
pub fn ways(shared: &Shared) -> String {
    let kerberos = shared.offer.visitors.service(SERVICE);
    let kerberos = kerberos.map(|service| format!("&P=krb5,{service}")).unwrap_or_default();
    format!("{kerberos}&P=unix")
}

/// Whoever shows that.
pub async fn meet(shared: &Shared, kind: [u8; 4], shown: Bytes) -> Result<Met, Refusal> {
    let visitors = &shared.offer.visitors;
    let service = visitors.service(SERVICE);
    match (kind, service) {
        (KERBEROS, Some(service)) => {
            let ticket = shown.strip_prefix(b"krb5\0").unwrap_or(&shown).to_vec();
            let evidence = Evidence::Ticket(ticket);
            let met = visitors.meet(Wish { evidence, scope: None, life: None }).await;
            match met {
                Ok(visitor) => Ok(Met::Guest(Arc::new(Guest::new(visitor)))),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    tracing::info!(%error, service, "a ticket shows nobody");
                    let text = format!(
                        "your ticket for {service} lets nobody in: {error}. If you are to have \
                         access, an administrator of /{} adds you: `tieline id add NAME \
                         --principal YOU@REALM`; `tieline id test YOU@REALM` shows who you are",
                        shared.offer.fs
                    );
                    Ok(Met::Stranger(Refusal::new(Code::NotAuthorized, text)))
                }
                Err(error) => {
                    tracing::warn!(%error, "nobody can be met");
                    let what = format!("who you are cannot be found out now: {error}");
                    Err(Refusal::new(code_of(error.kind()), what))
                }
            }
        }
        (UNPROVED | KERBEROS, None) => {
            Ok(Met::Stranger(Refusal::new(Code::NotAuthorized, visitors.advice(SERVICE))))
        }
        (UNPROVED, Some(service)) => {
            let text = format!(
                "no Kerberos ticket for {service} came with you: run `kinit`, see with `klist` \
                 that the ticket still holds, and that KRB5CCNAME names its cache"
            );
            Ok(Met::Stranger(Refusal::new(Code::NotAuthorized, text)))
        }
        (kind, _) => {
            let kind = String::from_utf8_lossy(&kind).trim_end_matches('\0').to_owned();
            let what = format!("`{kind}` is not offered here: Kerberos is (krb5)");
            Err(Refusal::new(Code::AuthFailed, what))
        }
    }
}

impl Guest {
    pub fn new(visitor: Arc<Visitor>) -> Self {
        let who = Who { caller: visitor.caller().clone(), scope: visitor.scope().cloned() };
        Self { visitor, who }
    }
}

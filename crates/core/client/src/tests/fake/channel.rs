//! Connections to the fake: what it is told to lose, to hold and to be silent about.

use super::*;

pub struct FakeDialer(pub Arc<Fake>);

impl Dialer for FakeDialer {
    fn dial(
        &self,
        addresses: &[String],
        hello: Hello,
        sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel> {
        let is_mds = addresses[0].starts_with("mds");
        self.0.lock().sinks.push((is_mds, sink.clone()));
        self.0.lock().waits_said.push(hello.wait_ms);
        let welcomed = Mutex::new(false);
        let address = addresses[0].clone();
        Arc::new(FakeChannel { fake: self.0.clone(), address, sink, welcomed })
    }
}

impl Fake {
    /// The line to the MDS is cut.
    pub fn cut(&self) {
        self.lock().absent.insert("mds:1".to_owned());
        let sinks = self.mds_sinks();
        sinks.iter().for_each(|sink| sink.disconnected());
    }

    /// It is whole again, and the session goes on.
    pub fn heal(&self) {
        self.lock().absent.remove("mds:1");
        let welcome = Welcome { is_resumed: true, ..self.welcome() };
        for sink in self.mds_sinks() {
            sink.connected(&welcome);
            sink.renewed(Instant::now());
        }
    }

    pub fn mds_sinks(&self) -> Vec<Arc<dyn NoticeSink>> {
        let state = self.lock();
        state.sinks.iter().filter(|(is_mds, _)| *is_mds).map(|(_, sink)| sink.clone()).collect()
    }
}

struct FakeChannel {
    fake: Arc<Fake>,
    address: String,
    sink: Arc<dyn NoticeSink>,
    welcomed: Mutex<bool>,
}

#[async_trait::async_trait]
impl Channel for FakeChannel {
    async fn exchange(&self, outgoing: Outgoing) -> Result<Incoming, CallError> {
        let sent = Instant::now();
        if self.fake.lock().absent.contains(&self.address) {
            let patience = outgoing.patience.unwrap();
            tokio::time::sleep(patience).await;
            return Err(CallError::Timeout { server: self.address.clone(), patience, why: None });
        }
        if !std::mem::replace(&mut *self.welcomed.lock().unwrap(), true) {
            self.sink.connected(&self.fake.welcome());
        }
        // A real server is elsewhere.
        tokio::task::yield_now().await;
        let delay = self.fake.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.fake.wander().await;
        let op = outgoing.request.op();
        let bulk = outgoing.bulk.to_bytes().unwrap();
        if op == Op::Commit && std::mem::take(&mut self.fake.lock().loses_session) {
            self.fake.lose_session();
            return Err(CallError::SessionLost { server: "mds".to_owned() });
        }
        let silent = |state: &State| {
            let ost = ost_of(&outgoing.request);
            ost.is_some_and(|ost| state.silent.contains(&ost))
        };
        let asked = tokio::time::Instant::now();
        while silent(&self.fake.lock()) {
            let patience = outgoing.patience.unwrap();
            if asked.elapsed() >= patience {
                return Err(CallError::Timeout { server: "oss".to_owned(), patience, why: None });
            }
            tokio::time::sleep(patience.min(Duration::from_millis(100))).await;
        }
        let (answer, held) = {
            let mut state = self.fake.lock();
            state.log.push(op);
            let is_wrong = state.has_moved && self.address == "mds:1" && op != Op::GetMap;
            let is_unproven = proofs_of(&outgoing).any(|proof| state.unproven.contains(&proof));
            let answer = if is_wrong {
                Err(Failure::new(ErrorKind::WrongServer, "fake"))
            } else if is_unproven {
                Err(Failure::new(ErrorKind::Unauthenticated, "fake"))
            } else if proofs_of(&outgoing).any(|proof| state.strangers.contains(&proof)) {
                Err(Failure::new(ErrorKind::PermissionDenied, "fake"))
            } else {
                state.answer(outgoing.request, bulk)
            };
            (answer, state.held.get(&op.number()).cloned())
        };
        if let Some(mut held) = held {
            held.wait_for(|free| *free).await.unwrap();
        }
        self.fake.wander().await;
        tokio::task::yield_now().await;
        self.sink.renewed(sent);
        match answer {
            Ok((body, bulk)) => Ok(Incoming { op, body: body.into(), bulk, held: None }),
            Err(failure) => Err(CallError::Refused(failure)),
        }
    }

    fn standing(&self) -> Option<Standing> {
        if !*self.welcomed.lock().unwrap() {
            return None;
        }
        let state = self.fake.lock();
        Some(Standing {
            session: SessionId(state.session),
            grant: state.grant,
            boot: 1,
            lease: LEASE,
            holder: None,
            is_connected: true,
        })
    }

    fn round_trips(&self) -> u64 {
        0
    }

    fn round_trip(&self) -> Option<Duration> {
        Some(self.fake.lock().delay).filter(|delay| !delay.is_zero())
    }

    fn warm(&self) {
        let is_away = self.fake.lock().absent.contains(&self.address);
        if !is_away && !std::mem::replace(&mut *self.welcomed.lock().unwrap(), true) {
            let (sink, welcome) = (self.sink.clone(), self.fake.welcome());
            tokio::spawn(async move { sink.connected(&welcome) });
        }
    }

    async fn close(&self, _patience: Duration) {}
}

/// What shows for whom a request is.
fn proofs_of(outgoing: &Outgoing) -> impl Iterator<Item = u64> {
    let items = match &outgoing.request {
        Request::Batch(batch) => batch.items.as_slice(),
        _ => &[],
    };
    let callers = items.iter().map(|item| &item.caller).chain([&outgoing.caller]);
    callers.filter_map(|caller| caller.proof)
}

/// The OST that a request is for.
fn ost_of(request: &Request) -> Option<OstIndex> {
    match request {
        Request::PutChunk(put) => Some(put.ost),
        Request::ReadObject(read) => Some(read.ost),
        Request::SyncFile(sync) => Some(sync.ost),
        Request::GrantRoom(grant) => Some(grant.ost),
        _ => None,
    }
}

pub fn done<C: Call>(reply: &C::Reply) -> Answer {
    Ok((tieline_wire::encode(reply), Bytes::new()))
}

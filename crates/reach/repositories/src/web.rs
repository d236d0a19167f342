//! Files behind HTTP.

use crate::{Shelf, Trouble, Want};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use tieline_http::Error;
use tieline_http::client::{Client, Request, Settings, WholeFile};
use tieline_http::range::{Asked, Ranges};
use tieline_http::tls::{ClientTls, Roots, RootsFrom};
use tieline_http::url::Url;
use tieline_types::ErrorKind;
use tieline_world::World;

/// Shelves behind HTTP, which share their connections.
#[derive(Clone)]
pub struct Web {
    world: World,
    client: Arc<OnceLock<Client>>,
}

impl Web {
    pub fn new(world: &World) -> Self {
        Self { world: world.clone(), client: Arc::default() }
    }

    /// The shelf below a URL; `None`: it is none of HTTP.
    pub fn shelf(&self, source: &str) -> Option<Arc<dyn Shelf>> {
        match Url::parse(source) {
            Ok(base) => Some(Arc::new(Below { web: self.clone(), base })),
            Err(error) => {
                tracing::warn!(source, %error, "a source of a repository cannot be read");
                None
            }
        }
    }

    /// Made when it is first needed: most have no repository.
    fn client(&self) -> &Client {
        self.client.get_or_init(|| {
            let roots = Roots::load(&[RootsFrom::System]).unwrap_or_else(|error| {
                tracing::warn!(%error, "no authority is believed: https:// will not do");
                Roots::none()
            });
            let tls = ClientTls::new(&self.world.clock, roots, None);
            // Nothing of ours is shown, so nothing can be wrong with it.
            let tls = tls.or_else(|_| ClientTls::new(&self.world.clock, Roots::none(), None));
            match tls {
                Ok(tls) => Client::new(&self.world, tls, Settings::default()),
                Err(error) => unreachable!("TLS without authorities: {error}"),
            }
        })
    }
}

struct Below {
    web: Web,
    base: Url,
}

#[async_trait::async_trait]
impl Shelf for Below {
    /// All of a file is asked for without ranges: caches on the way keep nothing else.
    async fn get(&self, want: Want<'_>) -> Result<Bytes, Trouble> {
        let url = self.base.below(want.key.split('/'));
        let trouble = |error: Error| Trouble::new(error.kind(), error.to_string());
        let Want { offset, length, most, .. } = want;
        let large = || Trouble::new(ErrorKind::Corrupt, format!("{} is too large", want.key));
        let most = usize::try_from(length.unwrap_or(most)).ok().filter(|&own| own as u64 <= most);
        let most = most.ok_or_else(large)?;
        let client = self.web.client();
        if offset == 0 {
            let response = client.send(Request::get(url.clone())).await.map_err(trouble)?;
            let body = response.success().await.map_err(trouble)?.body;
            // A pack has more than what is wanted of it.
            let is_pack = length.is_some() && body.length().is_some_and(|all| Some(all) > length);
            if !is_pack {
                return body.whole(most).await.map_err(trouble);
            }
        }
        let asked = match length {
            Some(length) => Ranges::one(offset..offset.saturating_add(length)),
            None => Ranges::of(vec![Asked::From(offset)]),
        };
        let request = Request::get(url).ranges(asked.ok_or_else(large)?);
        let response = client.send(request).await.map_err(trouble)?;
        let mut body = response.ranged(WholeFile::Cut).await.map_err(trouble)?;
        let mut bytes = Vec::new();
        while let Some((_, piece)) = body.next().await.map_err(trouble)? {
            if bytes.len() + piece.len() > most {
                return Err(large());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests;

//! Requests of who acts for another that are no transactions of their own.

use crate::Asker;
use crate::delegation::{self, Delegation};
use crate::error::Result;
use crate::made::Maker;
use crate::mdt::Mdt;
use crate::ops::Reply;
use crate::view::{Keepers, Scene, View};
use tieline_types::{FileKind, Grant};
use tieline_wire::{Answerer, Request};

impl Mdt {
    /// Is it within the scope of who acts for another? What runs in a transaction is looked at
    /// there.
    pub(crate) async fn check_scope(
        &self,
        asker: &Asker,
        grant: Grant,
        request: &Request,
    ) -> Result<()> {
        if asker.delegation.is_none() || request.op().answerer() != Answerer::Mdt {
            return Ok(());
        }
        let map = self.parts.map.current();
        let nobody = Keepers::new();
        loop {
            let scene = self.scene(asker, grant, &map.map, &nobody);
            let mut view = View::reading(scene, self.parts.store.begin().await?);
            let within = delegation::check(&mut view, request).await;
            match (within, view.commit().await) {
                (Err(error), _) | (_, Err(error)) if error.is_conflict() => {}
                (within, committed) => {
                    committed?.durable.await?;
                    return within;
                }
            }
        }
    }

    /// Somebody who acts for another made a file, which is his to fill.
    pub(crate) fn note_made(&self, scene: &Scene<'_>, reply: &Reply) {
        let made = match reply {
            Reply::Create(created) if created.is_new => Some(&created.open.attributes),
            Reply::MakeNode(made) => made.attributes.as_ref(),
            _ => None,
        };
        let made = made.filter(|made| made.kind == FileKind::Regular);
        let until = scene.delegation.and_then(|delegation: &Delegation| delegation.until);
        if let (Some(made), Some(maker), Some(until)) = (made, Maker::of(scene), until) {
            self.made.note(made.id, maker, until);
        }
    }
}

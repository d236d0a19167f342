//! GetTape: how a file stands to tape, and what is wished for it.

use super::open;
use crate::error::Result;
use crate::permission::{self, READ};
use crate::view::View;
use tieline_format::mdt::{Archived, Inode, Wished, key};
use tieline_types::FileId;
use tieline_wire::tape::{GetTape, TapeReply};

pub async fn run(view: &mut View<'_>, request: &GetTape) -> Result<TapeReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_open(id, &inode, view.scene.caller, &[READ])?;
    reply(view, id, &inode).await
}

pub async fn reply(view: &mut View<'_>, id: FileId, inode: &Inode) -> Result<TapeReply> {
    let archived: Option<Archived> = match inode.tape {
        Some(_) => view.record(key::tape_copy(id)).await?,
        None => None,
    };
    let wished: Option<Wished> = view.record(key::tape_wish(id)).await?;
    Ok(TapeReply {
        on_tape: inode.on_tape(),
        copy: archived.map(|archived| archived.copy),
        released: inode.tape.and_then(|tape| tape.released).unwrap_or(0),
        wish: wished.map(|wished| wished.state),
        now_ms: view.scene.now.millis(),
    })
}

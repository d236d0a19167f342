//! AskTape: a file shall be archived or restored.
//!
//! The wish is written down, and done in the background. What is so already leaves no wish; who
//! wishes anew what was given up has it tried again at once.

use super::{get_tape, open};
use crate::error::{Error, Result};
use crate::permission::{self, READ};
use crate::tape;
use crate::view::View;
use tieline_format::mdt::{Inode, Wished, key};
use tieline_types::{OnTape, TapeWish, WishState};
use tieline_wire::tape::{AskTape, TapeReply};

pub async fn run(view: &mut View<'_>, request: &AskTape) -> Result<TapeReply> {
    let id = request.id;
    let inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    let noted: Option<Wished> = view.record(key::tape_wish(id)).await?;
    match request.wish {
        TapeWish::Archive => {
            permission::check_owner(id, &inode, view.scene.caller, "archive it")?;
            if tape::pool_of(view.scene.map, &inode).is_none() {
                return Err(Error::NoHsm { id });
            }
        }
        TapeWish::Restore => {
            permission::check_open(id, &inode, view.scene.caller, &[READ])?;
        }
    }
    let mut reply = get_tape::reply(view, id, &inode).await?;
    if is_done(request.wish, &inode) {
        return Ok(reply);
    }
    let is_tried = noted.as_ref().is_some_and(|noted| !noted.state.is_over);
    let is_more = noted.as_ref().is_some_and(|noted| noted.state.wish == TapeWish::Archive);
    // What is to be archived is restored first anyhow.
    if !is_tried || !(is_more || noted.is_some_and(|noted| noted.state.wish == request.wish)) {
        let state = WishState::new(request.wish, view.scene.now);
        view.put(key::tape_wish(id), &Wished { state: state.clone() });
        reply.wish = Some(state);
    }
    Ok(reply)
}

fn is_done(wish: TapeWish, inode: &Inode) -> bool {
    match (wish, inode.on_tape()) {
        (TapeWish::Archive, on_tape) => {
            matches!(on_tape, Some(OnTape::Archived | OnTape::Released))
        }
        (TapeWish::Restore, on_tape) => !on_tape.is_some_and(OnTape::is_nearline),
    }
}

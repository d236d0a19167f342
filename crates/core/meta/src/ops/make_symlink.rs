//! MakeSymlink: a name for a path. The path is not interpreted.

use super::lease;
use crate::error::{Error, Result};
use crate::names::{self, NewFile};
use crate::view::View;
use tieline_types::{FileKind, Mode};
use tieline_wire::meta::{EntryReply, MakeSymlink};

/// Longest path in a symlink: what Linux takes as a path, without its end.
pub const TARGET_MAX: usize = 4095;

pub async fn run(view: &mut View<'_>, request: &MakeSymlink) -> Result<EntryReply> {
    let MakeSymlink { parent, ref name, ref target } = *request;
    match target.len() {
        0 => return Err(Error::Invalid { what: "a symlink's target is empty" }),
        long if long > TARGET_MAX => {
            return Err(Error::TooLong { what: "a symlink's target has at most 4095 bytes" });
        }
        _ if target.contains(&0) => {
            return Err(Error::Invalid { what: "a symlink's target contains a zero byte" });
        }
        _ => {}
    }
    let directory = names::parent_for_new(view, parent, name).await?;
    let new = NewFile {
        kind: FileKind::Symlink,
        mode: Mode::new(0o777),
        umask: Mode::new(0),
        device: 0,
        target: Some(target.clone()),
        layout: None,
    };
    let (id, inode) = names::add_file(view, (parent, directory), name, new).await?;
    Ok(EntryReply {
        attributes: Some(view.attributes(id, &inode)),
        junction: None,
        lease: lease(view, [parent]),
        target: inode.target,
    })
}

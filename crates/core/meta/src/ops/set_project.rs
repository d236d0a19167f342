//! SetProject: puts files into a project for quotas.
//!
//! Directories hand their project to what is made in them; what is in them already is for the
//! caller to name.

use crate::error::Result;
use crate::permission;
use crate::view::View;
use tieline_wire::quotas::{SetProject, SetProjectReply};

pub async fn run(view: &mut View<'_>, request: &SetProject) -> Result<SetProjectReply> {
    permission::check_root(view.scene.caller, "change projects")?;
    for &id in &request.ids {
        view.scene.check_mine(id)?;
    }
    let found = view.inodes(&request.ids).await?;
    let mut changed = 0;
    for (&id, inode) in request.ids.iter().zip(found) {
        let Some(mut inode) = inode.filter(|inode| inode.project != request.project) else {
            continue;
        };
        inode.project = request.project;
        inode.ctime = view.scene.changed(inode.ctime);
        view.touch_file(id, &inode);
        view.put_inode(id, &inode);
        changed += 1;
    }
    Ok(SetProjectReply { changed })
}

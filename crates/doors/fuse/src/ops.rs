//! Requests translated to calls of the client, and its answers to replies: nothing is decided here
//! that is not about the two languages.
//!
//! One file per group: [`names`], [`attributes`], [`files`], [`locks`], [`directories`],
//! [`xattrs`]. What is not listed is not offered: the kernel falls back and does not ask again.

pub mod attributes;
pub mod directories;
pub mod files;
pub mod locks;
pub mod names;
pub mod writes;
pub mod xattrs;

use crate::abi::opcode::Opcode;
use crate::abi::outgoing::{self, Space};
use crate::answer::Answer;
use crate::call::Call;
use crate::errno::Refusal;
use rustix::io::Errno;
use tieline_types::Caller;

type Outcome = Result<Answer, Refusal>;

pub async fn dispatch(call: Call) -> Outcome {
    // Also whoever is nobody may know why.
    if let Some(told) = xattrs::about_caller(&call).await {
        return told;
    }
    let outcome = dispatch_as(&call).await;
    if let Err(refusal) = &outcome {
        call.session.denials.note(&call, refusal);
    }
    outcome
}

async fn dispatch_as(call: &Call) -> Outcome {
    let mut is_first = true;
    loop {
        call.identify().await?;
        let outcome = dispatch_once(call).await;
        let is_denied = outcome.as_ref().is_err_and(Refusal::is_denial);
        if is_denied && let Some(refusal) = call.doubt() {
            return Err(refusal);
        }
        if !is_first || !is_denied || !call.renews_groups() {
            return outcome;
        }
        is_first = false;
    }
}

async fn dispatch_once(call: &Call) -> Outcome {
    match call.opcode {
        Opcode::Lookup => names::lookup(call).await,
        Opcode::Mknod => names::mknod(call).await,
        Opcode::Mkdir => names::mkdir(call).await,
        Opcode::Symlink => names::symlink(call).await,
        Opcode::Readlink => names::readlink(call).await,
        Opcode::Link => names::link(call).await,
        Opcode::Unlink => names::unlink(call).await,
        Opcode::Rmdir => names::rmdir(call).await,
        Opcode::Rename => names::rename(call).await,
        Opcode::Rename2 => names::rename2(call).await,
        Opcode::Getattr => attributes::getattr(call).await,
        Opcode::Setattr => attributes::setattr(call).await,
        Opcode::Open => files::open(call).await,
        Opcode::Create => files::create(call).await,
        Opcode::Tmpfile => files::tmpfile(call).await,
        Opcode::Read => files::read(call).await,
        Opcode::Write => writes::write(call).await,
        Opcode::Flush => files::flush(call).await,
        Opcode::Fsync => files::fsync(call).await,
        Opcode::Release => files::release(call).await,
        Opcode::Fallocate => files::fallocate(call).await,
        Opcode::Lseek => files::lseek(call).await,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => writes::copy_range(call).await,
        Opcode::Getlk => locks::getlk(call).await,
        Opcode::Setlk => locks::setlk(call, false).await,
        Opcode::Setlkw => locks::setlk(call, true).await,
        Opcode::Opendir => directories::opendir(call).await,
        Opcode::Readdir | Opcode::Readdirplus => directories::readdir(call).await,
        Opcode::Fsyncdir => directories::fsyncdir(call).await,
        Opcode::Releasedir => directories::releasedir(call).await,
        Opcode::Getxattr => xattrs::getxattr(call).await,
        Opcode::Listxattr => xattrs::listxattr(call).await,
        Opcode::Setxattr => xattrs::setxattr(call).await,
        Opcode::Removexattr => xattrs::removexattr(call).await,
        Opcode::Statfs => statfs(call).await,
        Opcode::Syncfs => syncfs(call).await,
        Opcode::Destroy => Ok(Answer::done()),
        Opcode::Ioctl => Err(Errno::NOTTY.into()),
        // Access is the kernel's own check (`default_permissions`); the others have fallbacks
        // there.
        Opcode::Access | Opcode::Poll | Opcode::Bmap => Err(Errno::NOSYS.into()),
        // For the time of birth alone the kernel would ask of every file by itself, listed or not.
        Opcode::Statx | Opcode::Unknown(_) => Err(Errno::NOSYS.into()),
        // The session sees to these before it comes here.
        Opcode::Init | Opcode::Interrupt | Opcode::Forget | Opcode::BatchForget => {
            Err(Errno::IO.into())
        }
    }
}

/// As an fsync of the uppermost directory, which stands for all.
async fn syncfs(call: &Call) -> Outcome {
    let files = call.fs();
    let top = files.open_directory(&Caller::root(), files.root()).await?;
    let synced = files.sync_directory(top).await;
    files.release_directory(top).await;
    synced?;
    Ok(Answer::done())
}

async fn statfs(call: &Call) -> Outcome {
    let space = call.fs().statfs(call.id()).await?;
    Ok(outgoing::statfs(Space {
        bytes_total: space.bytes_total,
        bytes_free: space.bytes_free,
        inodes_total: space.inodes_total,
        inodes_free: space.inodes_free,
    })
    .into())
}

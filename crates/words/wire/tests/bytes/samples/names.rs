//! Calls that make names, and those that take them away.

use super::*;

pub fn creations(op: Op) -> Vec<Sample> {
    let (parent, umask) = (directory(), Mode::new(0o022));
    match op {
        Op::MakeDirectory => {
            let (name, mode) = (name("reco"), Mode::new(0o2775));
            pair(meta::MakeDirectory { parent, name, mode, umask }, entry())
        }
        Op::MakeSymlink => {
            let target = b"run7.root".to_vec();
            pair(meta::MakeSymlink { parent, name: name("latest"), target }, entry())
        }
        Op::MakeNode => {
            let (kind, mode, device) = (FileKind::CharDevice, Mode::new(0o600), 0x0103);
            let call = meta::MakeNode { parent, name: name("null"), kind, mode, umask, device };
            pair(call, entry())
        }
        Op::Link => {
            let (id, name) = (file(), name("copy.root"));
            let plain = meta::Link { id, parent, name, replaces: None, keep: None };
            let mut samples = pair(plain.clone(), entry());
            let replacing = meta::Link { replaces: Some(true), keep: Some(directory()), ..plain };
            samples.push(request("-replacing", replacing));
            samples
        }
        _ => {
            let layout = Some(layout());
            let mode = Mode::new(0o664);
            let name = name("run7.root");
            let is_exclusive = true;
            let is_nameless = Some(false);
            let call =
                meta::Create { parent, name, mode, umask, is_exclusive, layout, is_nameless };
            pair(call, meta::CreateReply { is_new: true, open: open_reply() })
        }
    }
}

pub fn removals(op: Op) -> Vec<Sample> {
    let (parent, keep) = (directory(), Some(file()));
    let reply = meta::ChangeReply { attributes: Some(attributes()), lease: lease() };
    match op {
        Op::RemoveDirectory => pair(meta::RemoveDirectory { parent, name: name("reco") }, reply),
        Op::Unlink => pair(meta::Unlink { parent, name: name("run7.root"), keep }, reply),
        _ => {
            let rename = |mode| meta::Rename {
                from_parent: parent,
                from_name: name("run7.tmp"),
                to_parent: FileId::root_of(MdtIndex(1)),
                to_name: name("run7.root"),
                mode,
                keep,
            };
            let mut samples = pair(rename(RenameMode::Replace), reply);
            samples.push(request("-no-replace", rename(RenameMode::NoReplace)));
            samples.push(request("-exchange", rename(RenameMode::Exchange)));
            samples.push(request("-leaving", rename(RenameMode::ReplaceLeaving)));
            let careful = rename(RenameMode::NoReplaceLeaving);
            samples.push(request("-no-replace-leaving", careful));
            samples
        }
    }
}

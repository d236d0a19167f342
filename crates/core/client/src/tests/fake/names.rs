//! Files that are made, with a name and without, and put in the place of others.

use super::channel::done;
use super::*;

fn fail(kind: ErrorKind) -> Answer {
    Err(Failure::new(kind, "fake"))
}

impl State {
    pub(super) fn create(&mut self, new: &Create) -> Answer {
        if new.is_nameless == Some(true) {
            let id = self.add(new.parent, &new.name, FileKind::Regular);
            self.nodes.get_mut(&new.parent).unwrap().names.remove(&new.name);
            self.nodes.get_mut(&id).unwrap().attributes.links = 0;
            return done::<Create>(&CreateReply { is_new: true, open: self.open(id) });
        }
        let known = self.find(new.parent)?.names.get(&new.name).copied();
        if known.is_some() && new.is_exclusive {
            return fail(ErrorKind::Exists);
        }
        let is_new = known.is_none();
        let id = match known {
            Some(id) => id,
            None => {
                let id = self.add(new.parent, &new.name, FileKind::Regular);
                self.nodes.get_mut(&id).unwrap().attributes.mode = new.mode;
                id
            }
        };
        done::<Create>(&CreateReply { is_new, open: self.open(id) })
    }

    pub(super) fn link(&mut self, new: Link) -> Answer {
        let Link { id, parent, name, replaces, .. } = new;
        self.find(id)?;
        let names = &mut self.nodes.get_mut(&parent).unwrap().names;
        if names.contains_key(&name) && replaces != Some(true) {
            return fail(ErrorKind::Exists);
        }
        if let Some(replaced) = names.insert(name, id) {
            self.nodes.get_mut(&replaced).unwrap().attributes.links -= 1;
        }
        self.nodes.get_mut(&id).unwrap().attributes.links += 1;
        done::<Link>(&self.entry(parent, id))
    }
}

//! The fake tells metadata in bulk.

use super::*;
use tieline_foresight::bundles::{are_same, joined, of_run, signs};
use tieline_wire::trees::*;

/// Who changed something so lately is at work.
const AT_WORK: Duration = Duration::from_secs(3);

impl State {
    pub fn read_tree(&self, tree: &ReadTree) -> Answer {
        let is_at_work =
            |id: &FileId| self.at_work.get(id).is_some_and(|at| at.elapsed() < AT_WORK);
        let mut queue: Vec<(FileId, u32)> =
            tree.roots.iter().rev().map(|&id| (id, tree.depth)).collect();
        let (mut page, mut units, mut left) = (TreePage::default(), vec![], tree.entries as usize);
        page.layouts.push(self.layout.clone());
        while let Some((id, depth)) = queue.pop() {
            if left == 0 {
                page.is_cut = true;
                break;
            }
            let is_first = page.directories.is_empty();
            if self.closed.contains(&id) {
                match is_first {
                    true => return Err(Failure::new(ErrorKind::PermissionDenied, "fake")),
                    false => continue,
                }
            }
            if !is_first && is_at_work(&id) {
                continue;
            }
            let node = self.find(id)?;
            units.push(id);
            let after = tree.after.as_ref().filter(|_| is_first);
            let rest = node.names.iter().filter(|(name, _)| after.is_none_or(|a| *name > a));
            let rest: Vec<_> = rest.map(|(name, &id)| (name.clone(), id)).collect();
            let is_end = rest.len() <= left;
            page.is_cut |= !is_end;
            let mut entries = vec![];
            for (name, id) in rest.into_iter().take(left) {
                let child = &self.nodes[&id];
                let kind = child.attributes.kind;
                let is_told = kind != FileKind::Directory || !is_at_work(&id);
                if kind == FileKind::Directory && is_told {
                    units.push(id);
                }
                let entry = DirectoryEntry {
                    name,
                    id,
                    kind,
                    attributes: is_told.then(|| child.attributes.clone()),
                    target: child.target.clone(),
                };
                let is_told = kind == FileKind::Regular && tree.contents_max > 0;
                let file = is_told.then(|| self.file_bytes(id));
                entries.push(TreeEntry { entry, file, xattrs: None });
            }
            left -= entries.len();
            if depth > 0 {
                let below = entries.iter().rev().map(|one| &one.entry);
                let below = below.filter(|one| one.kind == FileKind::Directory);
                queue.extend(below.map(|one| (one.id, depth - 1)));
            }
            let attributes = node.attributes.clone();
            let bundles = self.bundles.get(&id).map(|known| {
                let all = known.iter().zip(0..);
                all.map(|(one, number)| BundleSigns { number, signs: signs(one) }).collect()
            });
            page.directories.push(TreeDirectory { attributes, entries, is_end, bundles });
        }
        let lease = self.lease(&units);
        let page = Packed::new(&page);
        done::<ReadTree>(&ReadTreeReply { lease, page, capabilities: None, has_limits: None })
    }

    pub fn read_files(&self, files: &ReadFiles) -> Answer {
        let mut page = FilesPage { layouts: vec![self.layout.clone()], ..FilesPage::default() };
        let mut units = vec![];
        for &id in &files.ids {
            page.count += 1;
            let Some(node) = self.nodes.get(&id) else { continue };
            let attributes = node.attributes.clone();
            if attributes.kind == FileKind::Regular {
                let (unit, bytes) = (node.parent, self.file_bytes(id));
                units.push(unit);
                page.files.push(ToldFile { attributes, unit, bytes });
            }
        }
        let lease = self.lease(&units);
        let page = Packed::new(&page);
        done::<ReadFiles>(&ReadFilesReply { lease, page, capabilities: None, has_limits: None })
    }

    pub fn report_bundle(&mut self, report: &ReportBundle) -> Answer {
        let known = self.bundles.entry(report.root).or_default();
        let new = of_run(&report.directories, &report.files);
        let number = known.iter().position(|one| are_same(one, &new));
        match number {
            Some(number) => known[number] = joined(&known[number], &new),
            None => known.push(new),
        }
        let number = number.unwrap_or(known.len() - 1) as u32;
        done::<ReportBundle>(&ReportBundleReply { number: Some(number) })
    }

    pub fn read_bundle(&self, ReadBundle { root, number }: &ReadBundle) -> Answer {
        let bundle = &self.bundles[root][*number as usize];
        let size = |id| self.nodes[&id].attributes.size;
        let files = bundle.files.iter().map(|one| SizedFile { id: one.id, size: size(one.id) });
        let directories = bundle.directories.iter().map(|one| one.id).collect();
        let list = Packed::new(&BundleList { directories, files: files.collect() });
        done::<ReadBundle>(&ReadBundleReply { list })
    }

    fn file_bytes(&self, id: FileId) -> FileBytes {
        let node = &self.nodes[&id];
        let covered = node.attributes.size;
        let extents = ExtentPage { extents: node.extents.clone(), covered };
        FileBytes { layout: 0, stripe: node.stripe.clone(), extents }
    }
}

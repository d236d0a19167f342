//! Metadata in bulk.

use super::*;
use tieline_wire::trees::*;

pub fn calls(op: Op) -> Vec<Sample> {
    let holder = Some(Holder([0x40; 16]));
    let lease = lease();
    let capabilities = Some(vec![capabilities::grant()]);
    if op == Op::ReportBundle {
        let (root, directories, files) = (directory(), vec![directory()], vec![file()]);
        let call = ReportBundle { root, directories, files };
        return pair(call, ReportBundleReply { number: Some(3) });
    }
    if op == Op::ReadBundle {
        let files = vec![SizedFile { id: file(), size: 4711 }];
        let list = plain(&BundleList { directories: vec![directory()], files });
        return pair(ReadBundle { root: directory(), number: 3 }, ReadBundleReply { list });
    }
    if op == Op::ReadFiles {
        let call = ReadFiles { ids: vec![file()], bytes: 1 << 20, contents_max: 256 << 10, holder };
        let told = ToldFile { attributes: attributes(), unit: directory(), bytes: bytes() };
        let page = FilesPage { layouts: vec![layout()], files: vec![told], count: 2 };
        let page = plain(&page);
        return pair(call, ReadFilesReply { lease, page, capabilities, has_limits: Some(true) });
    }
    let call = ReadTree {
        roots: vec![directory(), file()],
        depth: 64,
        entries: 4096,
        bytes: 1 << 20,
        contents_max: 256 << 10,
        after: Some(name("run6")),
        holder,
    };
    let entry = meta::DirectoryEntry {
        name: name("run7.root"),
        id: file(),
        kind: FileKind::Regular,
        attributes: Some(attributes()),
        target: Some(b"../run7".to_vec()),
    };
    let name = XattrName::new(b"user.origin".to_vec()).unwrap();
    let xattrs = Some(vec![meta::Xattr { name, value: b"uf".to_vec() }]);
    let entries = vec![TreeEntry { entry, file: Some(bytes()), xattrs }];
    let bundles = Some(vec![BundleSigns { number: 3, signs: vec![file()] }]);
    let directories =
        vec![TreeDirectory { attributes: attributes(), entries, is_end: true, bundles }];
    let page = plain(&TreePage { layouts: vec![layout()], directories, is_cut: true });
    pair(call, ReadTreeReply { lease, page, capabilities, has_limits: Some(true) })
}

fn bytes() -> FileBytes {
    let content = Content::Inline(b"hello".to_vec());
    let extents = vec![Extent { offset: 0, length: 5, content }];
    let extents = ExtentPage { extents, covered: 5 };
    FileBytes { layout: 0, stripe: vec![OstIndex(3)], extents }
}

/// A block that is not compressed, as any packer may write it: the bytes then show in the sample.
fn plain<T: minicbor::Encode<()>>(page: &T) -> Packed {
    let page = tieline_wire::encode(page);
    let length = page.len() as u32;
    let mut bytes = vec![0xf0];
    let mut more = page.len() - 15;
    while more >= 255 {
        bytes.push(255);
        more -= 255;
    }
    bytes.push(more as u8);
    bytes.extend(page);
    Packed { length, bytes }
}

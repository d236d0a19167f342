//! A repository's whole life, in a directory.

use super::*;
use crate::catalog::Catalog;
use crate::row::Seam;
use crate::tree::Directory;
use crate::trust::TrustError;
use std::os::unix::fs::symlink;

const NAME: &str = "sw.example.org";

fn name() -> RepositoryName {
    NAME.parse().unwrap()
}

struct Made {
    folder: tempfile::TempDir,
    repository: Repository,
}

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (keys, storage) = (folder.path().join("keys"), folder.path().join("storage"));
        let how = Create { keys, ttl: Duration::from_secs(60), whitelist: WHITELIST_DEFAULT };
        let repository = Repository::create(&name(), &storage, &how, &World::real()).unwrap();
        fs::create_dir_all(folder.path().join("tree/deep/deeper")).unwrap();
        Self { folder, repository }
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    fn publish(&mut self, how: &Publish) -> Published {
        let mut tree = Directory::new(self.tree());
        self.repository.publish(&mut tree, how, &mut |_| ()).unwrap()
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.repository.storage.join(file)).unwrap()
    }

    fn manifest(&self) -> Manifest {
        self.verify(&self.read(manifest::FILE), &self.read(whitelist::FILE)).unwrap()
    }

    fn trust(&self) -> Trust {
        Trust { repository: name(), keys: vec![self.repository.keys().public().unwrap()] }
    }

    fn verify(&self, manifest: &[u8], whitelist: &[u8]) -> Result<Manifest, TrustError> {
        let (_, certificate) = self.trust().read(manifest)?;
        let object = self.repository.object(&certificate, Kind::Certificate);
        self.trust().verify(manifest, &object.unwrap_or_default(), whitelist, self.repository.now())
    }

    fn catalog(&self, digest: &Digest) -> Catalog {
        let packed = self.repository.object(digest, Kind::Catalog).unwrap();
        Catalog::unpack(&packed, None).unwrap()
    }
}

#[test]
fn no_bit_of_what_is_signed_may_flip() {
    let made = Made::new();
    let (manifest, whitelist) = (made.read(manifest::FILE), made.read(whitelist::FILE));
    assert_eq!(made.verify(&manifest, &whitelist).unwrap().revision, 1);
    let flipped = |bytes: &[u8], at: usize| {
        let mut bad = bytes.to_vec();
        bad[at] ^= 1 << (at % 8);
        bad
    };
    for at in 0..manifest.len() {
        assert!(made.verify(&flipped(&manifest, at), &whitelist).is_err(), "manifest, {at}");
    }
    for at in 0..whitelist.len() {
        assert!(made.verify(&manifest, &flipped(&whitelist, at)).is_err(), "whitelist, {at}");
    }
    let other = Made::new();
    let of_other = other.verify(&manifest, &whitelist);
    assert_eq!(of_other, Err(TrustError::WhitelistSignature), "another master key");
    let (_, named) = made.trust().read(&manifest).unwrap();
    let certificate = made.repository.object(&named, Kind::Certificate).unwrap();
    let late = Time { seconds: made.repository.now().seconds + 31 * 24 * 3600, nanos: 0 };
    let late = made.trust().verify(&manifest, &certificate, &whitelist, late);
    assert!(matches!(late, Err(TrustError::Expired(_))), "{late:?}");
}

#[test]
fn revisions_count_and_what_is_the_same_is_not_published_again() {
    let mut made = Made::new();
    fs::write(made.tree().join("deep/file"), "one").unwrap();
    fs::write(made.tree().join("deep/.cvmfscatalog"), "").unwrap();
    symlink("file", made.tree().join("deep/link")).unwrap();
    fs::hard_link(made.tree().join("deep/file"), made.tree().join("deep/twin")).unwrap();
    let first = made.publish(&Publish::default());
    assert_eq!((first.revision, first.catalogs, first.is_unchanged), (2, 2, false));
    let again = made.publish(&Publish::default());
    assert_eq!((again.revision, again.new, again.is_unchanged), (2, 0, true));
    assert_eq!(made.manifest().catalog, first.root);
    let nested = |made: &Made| {
        let root = made.catalog(&made.manifest().catalog);
        root.nested(b"/deep").map(|(_, digest, _)| digest).unwrap()
    };
    let deep = made.catalog(&nested(&made));
    let twin = deep.row(hash::path_hash(b"/deep/twin")).unwrap().unwrap();
    assert_eq!((twin.links, twin.group), (2, 1));
    let place = made.catalog(&first.root).row(hash::path_hash(b"/deep")).unwrap().unwrap();
    assert_eq!((place.seam, place.links), (Seam::Mountpoint, 3));
    // What changes elsewhere leaves it as it was; another time to live is another revision.
    let before = nested(&made);
    fs::write(made.tree().join("new"), "two").unwrap();
    assert_eq!(made.publish(&Publish::default()).revision, 3);
    assert_eq!(nested(&made), before);
    let ttl = Some(Duration::from_secs(7));
    assert_eq!(made.publish(&Publish { ttl, ..Publish::default() }).revision, 4);
    assert_eq!(made.manifest().ttl, Duration::from_secs(7));
}

#[test]
fn a_key_that_was_replaced_signs_the_tree_that_is_there() {
    let mut made = Made::new();
    fs::write(made.tree().join("deep/file"), "one").unwrap();
    let first = made.publish(&Publish::default());
    let old = made.manifest();
    let folder = tempfile::tempdir().unwrap();
    let other = Keys { folder: folder.path().to_owned(), repository: name() };
    other.prepare(&World::real()).unwrap();
    for extension in ["key", "crt"] {
        fs::copy(other.path(extension), made.repository.keys().path(extension)).unwrap();
    }
    made.repository.sign_whitelist(WHITELIST_DEFAULT).unwrap();
    let manifest = made.read(manifest::FILE);
    let refused = made.verify(&manifest, &made.read(whitelist::FILE));
    assert!(matches!(refused, Err(TrustError::NotListed(_))), "{refused:?}");
    let again = made.publish(&Publish::default());
    assert_eq!((again.revision, again.is_unchanged), (first.revision, true));
    let new = made.manifest();
    assert_eq!(new.catalog, old.catalog);
    assert_ne!(new.certificate, old.certificate);
}

#[test]
fn large_trees_are_divided_and_say_that_nobody_asked() {
    let mut made = Made::new();
    for folder in ["deep", "deep/deeper", "wide"] {
        fs::create_dir_all(made.tree().join(folder)).unwrap();
        for number in 0..20 {
            fs::write(made.tree().join(folder).join(number.to_string()), [number]).unwrap();
        }
    }
    let limits = Limits { most: 30, least: 10 };
    let published = made.publish(&Publish { limits, ..Publish::default() });
    assert_eq!(published.catalogs, 3);
    let mut catalog = made.catalog(&published.root);
    for path in [&b"/deep"[..], b"/deep/deeper"] {
        let nested: Vec<_> = catalog.nested_all().map(|(path, ..)| path.clone()).collect();
        assert_eq!(nested, [path]);
        catalog = made.catalog(&catalog.nested(path).unwrap().1);
        for marker in [&b"/.cvmfscatalog"[..], b"/.cvmfsautocatalog"] {
            let marker = hash::path_hash(&[path, marker].concat());
            assert!(catalog.row(marker).unwrap().is_some());
        }
    }
    // Divided the same way, it is the same.
    assert!(made.publish(&Publish { limits, ..Publish::default() }).is_unchanged);
}

#[test]
fn one_process_publishes_at_a_time_and_wrong_places_are_named() {
    let made = Made::new();
    let (storage, world) = (made.repository.storage.clone(), World::real());
    let busy = Repository::open(&name(), &storage, &world).map(drop);
    assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
    let Made { folder, repository } = made;
    drop(repository);
    let other = Repository::open(&"other.example.org".parse().unwrap(), &storage, &world).map(drop);
    assert!(matches!(other, Err(Error::Other { .. })), "{other:?}");
    let missing = Repository::open(&name(), folder.path(), &world).map(drop);
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    let keys = folder.path().join("keys");
    let how = Create { keys, ttl: Duration::ZERO, whitelist: WHITELIST_DEFAULT };
    let again = Repository::create(&name(), &storage, &how, &world).map(drop);
    assert!(matches!(again, Err(Error::Exists(_))), "{again:?}");
    let undotted = Repository::create(&"sw".parse().unwrap(), &storage, &how, &world).map(drop);
    assert!(matches!(undotted, Err(Error::Name(_))), "{undotted:?}");
    fs::remove_file(how.keys.join(format!("{NAME}.crt"))).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    let partly = Repository::create(&name(), &elsewhere, &how, &world).map(drop);
    assert!(matches!(partly, Err(Error::Keys(KeyError::Incomplete { .. }))), "{partly:?}");
}

#[test]
fn what_a_catalog_cannot_say_is_refused_by_its_path() {
    let mut made = Made::new();
    let path = made.tree().join("deep");
    let long = [b'y'; 300];
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&path, "user.long", &long, flags).is_err() {
        // Not every place for temporary files has attributes.
        return;
    }
    let mut tree = Directory::new(made.tree());
    let refused = made.repository.publish(&mut tree, &Publish::default(), &mut |_| ());
    let Err(Error::Publish(PublishError::Entry { path, .. })) = refused else {
        panic!("it was published");
    };
    assert_eq!(path, "/deep");
    assert_eq!(made.manifest().revision, 1);
}

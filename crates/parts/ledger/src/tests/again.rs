//! Stores that are lost again before a dump is made, and logs that are damaged.

use super::*;
use crate::directory::segment;
use crate::restore::verify_all;

impl Place {
    fn lose(&self) {
        std::fs::remove_file(self.path()).unwrap();
        let _ = std::fs::remove_file(self.path().with_extension("redb-wal"));
    }

    /// As `tieline mdt restore` does it.
    async fn restore(&self, paths: &[PathBuf], up_to_hole: bool) -> Result<Restored, Error> {
        let store = EmbeddedStore::open(&self.path(), ByteSize(1 << 20)).unwrap();
        let settings = LogSettings { directory: self.logs(), waits: self.waits };
        let log = Log::open(identity(), settings, Box::new(Time::default)).unwrap();
        restore(&store, &identity(), Asked { up_to_hole, log: Some(&log), ..asked(paths) }).await
    }

    /// Puts a pair in a segment of its own.
    async fn put(&self, name: &str) -> Version {
        let (store, _log) = self.open();
        put(&store, &[(name, "1")]).await
    }

    fn segment(&self, number: u64) -> PathBuf {
        segment(&self.logs(), identity().mdt, number)
    }

    fn copy_log(&self) -> (tempfile::TempDir, PathBuf) {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(self.logs()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let path = copy.path().to_owned();
        (copy, path)
    }
}

fn names(pairs: &Pairs) -> Vec<String> {
    pairs.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

/// Turns a byte within the last frame but one.
fn damage(path: &Path) {
    let mut frames = Frames::open(path).unwrap();
    let mut starts = vec![];
    while let Some((_, _)) = frames.read().unwrap() {
        starts.push(frames.at() as usize);
    }
    let at = starts[starts.len() - 2] - 3;
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_store_that_is_lost_again_before_it_was_dumped_comes_back_again() {
    let place = Place::new();
    place.put("a").await;
    for name in ["b", "c", "d"] {
        place.lose();
        let outcome = place.restore(&[place.logs()], false).await.unwrap();
        assert_eq!(outcome.notes, Vec::<String>::new());
        let (store, log) = place.open();
        assert!(log.wants_dump(), "what was restored from may lie elsewhere");
        put(&store, &[(name, "1")]).await;
    }
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "b", "c", "d"]);
    assert_eq!(outcome.dump, None);
    // A dump is as good.
    let (store, log) = place.open();
    dump::beside_log(&store, &log, true).await.unwrap();
    drop((store, log));
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "b", "c", "d"]);
    assert!(outcome.dump.is_some());
}

#[tokio::test]
async fn what_was_given_up_at_a_hole_stays_given_up() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.put(name).await;
    }
    std::fs::remove_file(place.segment(2)).unwrap();
    place.lose();
    assert!(matches!(place.restore(&[place.logs()], false).await, Err(Error::Hole { .. })));
    place.lose();
    let outcome = place.restore(&[place.logs()], true).await.unwrap();
    assert_eq!((outcome.groups, outcome.notes.len()), (1, 1));
    // The server starts: its log is no other store's.
    place.put("d").await;
    place.lose();
    place.restore(&[place.logs()], false).await.unwrap();
    place.put("e").await;
    let (again, _) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "d", "e"]);
}

#[tokio::test]
async fn a_new_log_goes_on_where_copies_end() {
    let place = Place::new();
    for name in ["a", "b"] {
        place.put(name).await;
    }
    let (_kept, copy) = place.copy_log();
    place.lose();
    std::fs::remove_dir_all(place.logs()).unwrap();
    place.restore(std::slice::from_ref(&copy), false).await.unwrap();
    place.put("c").await;
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::NoDump { .. })));
    let (again, _) = restored(&[place.logs(), copy]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_log_that_goes_further_than_what_was_named_is_not_written_over() {
    let place = Place::new();
    for name in ["a", "b"] {
        place.put(name).await;
    }
    place.lose();
    let before = files(&place.logs(), "log");
    let refused = place.restore(&[place.segment(1)], false).await;
    assert!(matches!(refused, Err(Error::NotNamed { .. })), "{refused:?}");
    assert_eq!(files(&place.logs(), "log"), before);
}

#[tokio::test]
async fn damage_matters_only_where_something_behind_it_is_wanted() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        let (store, _log) = place.open();
        put(&store, &[(name, "1")]).await;
        put(&store, &[(name, "2")]).await;
    }
    let (_kept, copy) = place.copy_log();
    let whole = all(&restored(std::slice::from_ref(&copy)).await.unwrap().0).await;
    damage(&place.segment(2));
    let refused = restored(&[place.logs()]).await.err().unwrap();
    let why = refused.chain();
    assert!(
        why.contains("0002.log is damaged, and what it had behind") && why.contains("checksum"),
        "{why}"
    );
    // A whole copy of it does.
    let (again, outcome) = restored(&[place.logs(), copy]).await.unwrap();
    assert_eq!((all(&again).await, outcome.notes.len()), (whole.clone(), 0));
    let store = MemoryStore::new();
    let outcome = up_to_hole(&store, &identity(), &[place.logs()]).await.unwrap();
    assert_eq!((names(&all(&store).await), outcome.groups), (vec!["a".to_owned()], 2));
    assert!(outcome.notes[0].contains("0002.log is damaged"), "{:?}", outcome.notes);
    // A newer dump has what it had, and so has one that cannot be read at all.
    let (store, log) = place.open();
    dump::beside_log(&store, &log, false).await.unwrap();
    put(&store, &[("d", "1")]).await;
    drop((store, log));
    std::fs::write(place.segment(1), vec![7; 4096]).unwrap();
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "b", "c", "d"]);
    assert!(outcome.dump.is_some() && outcome.notes.len() == 2, "{:?}", outcome.notes);
}

#[tokio::test]
async fn a_damaged_last_segment_is_no_torn_one() {
    let place = Place::new();
    place.put("a").await;
    place.put("b").await;
    let last = std::fs::read(place.segment(2)).unwrap();
    std::fs::write(place.segment(2), vec![7; 4096]).unwrap();
    let refused = restored(&[place.logs()]).await.err();
    assert!(matches!(refused, Some(Error::Damaged { .. })), "{refused:?}");
    // One that a crash left when it was begun holds nothing.
    for length in [0, 5, 20] {
        std::fs::write(place.segment(2), &last[..length]).unwrap();
        let (again, outcome) = restored(&[place.logs()]).await.unwrap();
        assert_eq!(names(&all(&again).await), ["a"]);
        assert_eq!(outcome.notes.len(), 1, "{:?}", outcome.notes);
    }
}

#[tokio::test]
async fn a_dump_of_what_was_given_up_is_not_used() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    drop((store, log));
    let (_kept, copy) = place.copy_log();
    let (store, log) = place.open();
    put(&store, &[("b", "1")]).await;
    dump::beside_log(&store, &log, false).await.unwrap();
    drop((store, log));
    let (kept, _) = (files(&place.logs(), "dump").remove(0), place.lose());
    let aside = place.directory.path().join("aside");
    std::fs::rename(&kept, &aside).unwrap();
    std::fs::remove_dir_all(place.logs()).unwrap();
    place.restore(std::slice::from_ref(&copy), false).await.unwrap();
    place.put("c").await;
    let (again, outcome) = restored(&[place.logs(), copy, aside]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "c"]);
    assert!(outcome.dump.is_none() && outcome.notes.len() == 1, "{:?}", outcome.notes);
}

#[tokio::test]
async fn a_damaged_dump_matters_only_where_nothing_else_goes_as_far() {
    let place = Place::new();
    let aside = tempfile::tempdir().unwrap();
    let (store, log) = place.open();
    let mut dumps = vec![];
    for name in ["a", "b"] {
        put(&store, &[(name, "1")]).await;
        dump::beside_log(&store, &log, false).await.unwrap();
        let kept = aside.path().join(format!("of-{name}.bak"));
        std::fs::copy(files(&place.logs(), "dump").last().unwrap(), &kept).unwrap();
        dumps.push(kept);
    }
    put(&store, &[("c", "1")]).await;
    drop((store, log));
    damage(&dumps[1]);
    // The log has what it had.
    let (again, outcome) =
        restored(&[place.logs(), dumps[0].clone(), dumps[1].clone()]).await.unwrap();
    assert_eq!(names(&all(&again).await), ["a", "b", "c"]);
    assert!(outcome.notes[0].contains("this dump is not used"), "{:?}", outcome.notes);
    // Nothing else has; also where they are found in a directory, under names of their own.
    let (both, whole) = (dumps.clone(), vec![aside.path().to_owned()]);
    for paths in [both, whole] {
        let refused = restored(&paths).await.err();
        assert!(matches!(refused, Some(Error::Damaged { .. })), "{refused:?}");
        let store = MemoryStore::new();
        let outcome = up_to_hole(&store, &identity(), &paths).await.unwrap();
        assert_eq!((names(&all(&store).await), outcome.notes.len()), (vec!["a".to_owned()], 1));
    }
}

#[tokio::test]
async fn dumps_have_any_name() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    dump::beside_log(&store, &log, false).await.unwrap();
    drop((store, log));
    let aside = tempfile::tempdir().unwrap();
    std::fs::copy(&files(&place.logs(), "dump")[0], aside.path().join("monday")).unwrap();
    std::fs::write(aside.path().join("README"), "what lies here").unwrap();
    std::fs::write(aside.path().join("tuesday.part"), "half of it").unwrap();
    let paths = [aside.path().to_owned()];
    let (again, outcome) = restored(&paths).await.unwrap();
    assert_eq!((names(&all(&again).await), outcome.notes.len()), (vec!["a".to_owned()], 0));
    assert_eq!(verify_all(aside.path()).unwrap().len(), 1);
    let other = Identity { mdt: MdtIndex(7), ..identity() };
    let nothing = up_to_hole(&MemoryStore::new(), &other, &paths).await;
    assert!(matches!(nothing, Err(Error::Nothing { .. })), "another MDT's: {nothing:?}");
}

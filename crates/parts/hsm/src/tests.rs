//! Scripts as sites write them: slow, failing, talkative, elsewhere.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use tempfile::TempDir;
use tieline_types::ErrorKind;

struct Place {
    directory: TempDir,
    scripts: Arc<Scripts>,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let [scripts, spool] = ["scripts", "spool"].map(|name| directory.path().join(name));
        fs::create_dir(&scripts).unwrap();
        fs::create_dir(&spool).unwrap();
        let scripts = Arc::new(Scripts::new(Some(scripts), spool));
        Self { directory, scripts }
    }

    fn script(&self, at: &str, body: &str) -> Hsm {
        let path = self.directory.path().join(at);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut hsm = Hsm::new(path.to_str().unwrap().to_owned(), "osm".to_owned());
        hsm.options = vec!["group=cms".to_owned()];
        hsm
    }

    async fn put(&self, hsm: &Hsm) -> Result<String, Error> {
        let file = Path::new("/spool/file");
        let deed = Deed::Put { name: "00AF", file, info: "size=3;new=true;" };
        let output = self.scripts.run(hsm, &deed, || ()).await?;
        Ok(String::from_utf8(output).unwrap())
    }
}

#[tokio::test]
async fn a_script_is_told_what_dcache_tells() {
    let place = Place::new();
    let hsm = place.script("scripts/echo", "echo \"$@\"");
    let script = &hsm.script;
    let tail = format!("-group=cms -hsmInstance=osm -command={script}\n");
    let said = place.put(&hsm).await.unwrap();
    assert_eq!(said, format!("put 00AF /spool/file -si=size=3;new=true; {tail}"));
    let (file, uri) = (Path::new("/f"), "osm://osm/?bfid=1");
    let get = Deed::Get { name: "00AF", file, info: "size=3;", uri };
    let said = place.scripts.run(&hsm, &get, || ()).await.unwrap();
    let expected = format!("get 00AF /f -si=size=3; -uri=osm://osm/?bfid=1 {tail}");
    assert_eq!(String::from_utf8(said).unwrap(), expected);
    let said = place.scripts.run(&hsm, &Deed::Remove { uri }, || ()).await.unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), format!("remove -uri={uri} {tail}"));
}

#[tokio::test]
async fn a_script_that_fails_says_why() {
    let place = Place::new();
    let hsm = place.script("scripts/fails", "echo no tape >&2; exit 41");
    let error = place.put(&hsm).await.unwrap_err();
    assert_eq!((error.kind(), error.is_final()), (ErrorKind::NoSpace, false));
    let told = error.to_string();
    assert!(told.ends_with("status 41 (no space left on device): no tape"), "{told}");
    let hsm = place.script("scripts/never", "exit 31");
    assert!(place.put(&hsm).await.unwrap_err().is_final());
}

#[tokio::test]
async fn only_what_the_site_allows_is_run() {
    let place = Place::new();
    let outside = place.script("outside", "echo a://b");
    assert!(matches!(place.put(&outside).await, Err(Error::Elsewhere { .. })));
    let link = place.directory.path().join("scripts/link");
    std::os::unix::fs::symlink(&outside.script, &link).unwrap();
    let led = Hsm { script: link.to_str().unwrap().to_owned(), ..outside.clone() };
    assert!(matches!(place.put(&led).await, Err(Error::Elsewhere { .. })));
    let open = place.script("scripts/open", "echo a://b");
    fs::set_permissions(&open.script, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(place.put(&open).await, Err(Error::Writable { .. })));
    fs::set_permissions(&open.script, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(place.put(&open).await, Err(Error::NoProgram { .. })));
    let none = Scripts::new(None, place.scripts.spool().to_owned());
    let refused = none.run(&open, &Deed::Remove { uri: "a://b" }, || ()).await;
    assert!(matches!(refused, Err(Error::NoneAllowed { .. })));
}

/// The script and what it has started are gone when its time is over, and when it says too much.
#[tokio::test]
async fn a_script_has_its_time_and_its_room() {
    let place = Place::new();
    let mark = place.directory.path().join("mark");
    let body = format!("(sleep 2; touch {}) & wait", mark.display());
    let slow = Hsm { put_seconds: 1, ..place.script("scripts/slow", &body) };
    assert!(matches!(place.put(&slow).await, Err(Error::Late { .. })));
    let talks = place.script("scripts/talks", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaa; done");
    assert!(matches!(place.put(&talks).await, Err(Error::Talks { .. })));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!mark.exists(), "a child of the script went on");
}

#[tokio::test]
async fn no_more_run_at_once_than_the_hsm_takes() {
    let place = Place::new();
    let body = "mkdir one || exit 7; sleep 0.1; rmdir one; echo a://b";
    let hsm = Hsm { puts: 1, ..place.script("scripts/one", body) };
    let puts = [place.put(&hsm), place.put(&hsm), place.put(&hsm)];
    let [one, two, three] = puts;
    let (one, two, three) = tokio::join!(one, two, three);
    assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
}

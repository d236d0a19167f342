//! A process goes on where another one left, on a kernel that gives no request again.

use super::Mounted;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tieline_files::memory::Memory;
use tieline_fuse::{Beginning, HandOver, Mount, MountOptions, Taken};
use tieline_keep::{Keep, Record};

/// Protocol 7.39 gives nothing again.
const MINOR: u32 = 39;

type Handed = (Vec<OwnedFd>, Vec<u8>);

fn copies(devices: &[OwnedFd]) -> Vec<OwnedFd> {
    devices.iter().map(|device| device.try_clone().unwrap()).collect()
}

/// Is it a request about that name? One without a length is gone.
fn is_about(record: &Record, name: &str) -> bool {
    let bytes = record.bytes();
    !bytes.starts_with(&[0; 4]) && bytes.windows(name.len()).any(|part| part == name.as_bytes())
}

/// What was answered is not done again: the program may have gone on since.
#[test]
fn only_what_was_not_answered_is_served_again() {
    let keep = Keep::create(64 << 20).unwrap();
    let handed: Arc<Mutex<Option<Handed>>> = Arc::default();
    let (fs, runtime) = (Memory::new(1), tokio::runtime::Runtime::new().unwrap());
    fs.freeze("create");
    let first = {
        let handed = Arc::clone(&handed);
        let give = move |devices: &[OwnedFd], agreed: &[u8]| {
            *handed.lock().unwrap() = Some((copies(devices), agreed.to_vec()));
            Ok(())
        };
        let hand_over = HandOver { give: Box::new(give), keep: keep.clone() };
        Mounted::beginning(fs, Beginning::Mounted(Some(hand_over)), |options| {
            options.minor_max = MINOR;
        })
    };
    let path = first.path("asked");
    let program = std::thread::spawn(move || File::create_new(path));
    first.fs.wait_until_waiting(1);

    let file = keep.file().unwrap().as_fd().try_clone_to_owned().unwrap();
    let (again, records) = Keep::open(file).unwrap();
    let asked = records.iter().find(|record| is_about(record, "asked")).unwrap();
    // As it looks that was answered, in a process that died before it could forget it.
    let mut bytes = asked.bytes();
    let at = bytes.windows(5).position(|part| part == b"asked").unwrap();
    bytes[at..at + 5].copy_from_slice(b"given");
    bytes[8..16].copy_from_slice(&2u64.to_ne_bytes());
    let (kind, key) = (asked.kind, asked.key);
    // A killed process takes no record away.
    std::mem::forget((again.put(kind, key, &[&bytes]).unwrap(), records));
    let file = again.file().unwrap().as_fd().try_clone_to_owned().unwrap();
    let (again, mut records) = Keep::open(file).unwrap();
    assert!(["asked", "given"].iter().all(|name| records.iter().any(|one| is_about(one, name))));

    let (devices, agreed) = handed.lock().unwrap().take().unwrap();
    let taken = Taken::new(devices, &agreed, again, &mut records).unwrap();
    let fs = Arc::new(Memory::new(1));
    let next = Mount::start_as(
        Arc::clone(&fs) as Arc<_>,
        &MountOptions::new(first.root(), "127.0.0.1:7988:/extenci"),
        runtime.handle().clone(),
        Beginning::Taken(taken),
    );
    let made = program.join().unwrap();
    assert!(made.is_ok(), "{made:?}");
    assert!(fs.try_bytes("asked").is_some() && fs.try_bytes("given").is_none());
    assert_eq!(fs.handles(), 1, "what the program has open");
    first.fs.thaw();
    drop((made, next, first));
}

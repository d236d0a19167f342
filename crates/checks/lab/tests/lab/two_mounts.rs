//! Two clients of one file system: what one has finished, the other sees at once. No test here
//! waits or tries again: that is the promise.

use anyhow::{Result, ensure};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, with_federation};

/// A federation with two mounts.
fn with_two(test: impl FnOnce(&Federation, &Path, &Path) -> Result<()>) -> Result<()> {
    with_federation(|lab| {
        let far: PathBuf = lab.mount_again()?;
        test(lab, lab.mount(), &far)
    })
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// A mount that is ready lets in who may enter, from the first step on: its kernel knows the root's
/// mode by then, and asks nobody for it here.
#[test]
fn a_new_mount_knows_who_may_enter() -> Result<()> {
    with_federation(|lab| {
        lab.shell("chmod 1777 .")?;
        let there = lab.mount_again()?;
        let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::MODE);
        let known = rustix::fs::statx(rustix::fs::CWD, &there, flags, wanted)?;
        ensure!(known.stx_mode & 0o7777 == 0o1777, "mode {:o}", known.stx_mode);
        Ok(())
    })
}

/// Promise 1: Whoever opens a file after it was closed, on any client, reads what was written.
#[test]
fn what_is_closed_here_is_seen_there() -> Result<()> {
    with_two(|_, here, there| {
        for round in 0..25 {
            let (writer, reader) = if round % 2 == 0 { (here, there) } else { (there, here) };
            // Longer and shorter, within the metadata and beyond it.
            let text = format!("round {round} ").repeat(1 + (round * 977) % 5000);
            fs::write(writer.join("file"), &text)?;
            ensure!(fs::metadata(reader.join("file"))?.len() == text.len() as u64, "size, {round}");
            ensure!(fs::read_to_string(reader.join("file"))? == text, "content, round {round}");
        }
        Ok(())
    })
}

/// Promise 2: A name that was created, renamed or removed is seen so by the next look of every
/// other client.
#[test]
fn names_change_for_both() -> Result<()> {
    with_two(|_, here, there| {
        // The absence of a name is remembered too, and must be forgotten in time.
        ensure!(!there.join("a").exists());
        fs::write(here.join("a"), "a")?;
        ensure!(there.join("a").exists(), "a file created");
        ensure!(names(there)?.contains(&"a".to_owned()), "in the listing");
        fs::rename(there.join("a"), there.join("b"))?;
        ensure!(!here.join("a").exists() && here.join("b").exists(), "a file renamed");
        fs::create_dir(here.join("d"))?;
        fs::rename(there.join("b"), there.join("d/b"))?;
        ensure!(names(&here.join("d"))? == ["b"], "a file moved into a directory");
        fs::hard_link(here.join("d/b"), here.join("link"))?;
        fs::write(there.join("link"), "through the link")?;
        ensure!(fs::read_to_string(here.join("d/b"))? == "through the link");
        fs::remove_file(there.join("d/b"))?;
        let error = fs::read(here.join("d/b")).unwrap_err();
        ensure!(error.kind() == ErrorKind::NotFound, "{error}");
        fs::remove_dir(here.join("d"))?;
        ensure!(!there.join("d").exists(), "a directory removed");
        let error = fs::create_dir(there.join("d/e")).unwrap_err();
        ensure!(error.kind() == ErrorKind::NotFound, "{error}");
        Ok(())
    })
}

/// Promise 3: A listing that begins after a change shows the change, on every client.
#[test]
fn listings_follow() -> Result<()> {
    with_two(|_, here, there| {
        fs::create_dir(here.join("d"))?;
        for number in 0..30 {
            let (writer, reader) = if number % 2 == 0 { (here, there) } else { (there, here) };
            fs::write(writer.join(format!("d/{number:02}")), "")?;
            ensure!(names(&reader.join("d"))?.len() == number + 1, "after {number}");
        }
        for number in 0..30 {
            let (writer, reader) = if number % 2 == 0 { (here, there) } else { (there, here) };
            fs::remove_file(writer.join(format!("d/{number:02}")))?;
            ensure!(names(&reader.join("d"))?.len() == 29 - number, "after removing {number}");
        }
        Ok(())
    })
}

#[test]
fn a_reader_that_opens_again_sees_the_new_bytes() -> Result<()> {
    with_two(|_, here, there| {
        fs::write(here.join("f"), vec![b'a'; 9_000_000])?;
        // Cached there, in memory and in the kernel.
        ensure!(fs::read(there.join("f"))?.iter().all(|byte| *byte == b'a'));
        let file = OpenOptions::new().write(true).open(here.join("f"))?;
        std::os::unix::fs::FileExt::write_all_at(&file, &[b'b'; 1000], 5_000_000)?;
        drop(file);
        let read = fs::read(there.join("f"))?;
        ensure!(read.len() == 9_000_000);
        let changed = read.iter().filter(|byte| **byte == b'b').count();
        ensure!(changed == 1000, "{changed} bytes of 1000 arrived");
        Ok(())
    })
}

/// Promise 7: Lines appended through O_APPEND are never lost or torn, by several programs of one
/// mount or of several clients at once.
#[test]
fn appenders_take_turns_without_loss() -> Result<()> {
    with_two(|_, here, there| {
        for number in 0..50 {
            for mount in [here, there] {
                let path = mount.join("log");
                let mut file = OpenOptions::new().append(true).create(true).open(path)?;
                writeln!(file, "{number}")?;
            }
        }
        let wanted: String = (0..50).map(|number| format!("{number}\n{number}\n")).collect();
        for mount in [here, there] {
            ensure!(fs::read_to_string(mount.join("log"))? == wanted, "at {mount:?}");
        }
        Ok(())
    })
}

/// Promise 5: A rename that replaces a file does so in one step: a reader finds the old file or
/// the new one, whole, and never none.
#[test]
fn a_replacing_rename_is_one_step() -> Result<()> {
    with_two(|_, here, there| {
        // One version lies in the metadata, the next in chunks.
        let version = |number: usize| format!("version {number} ").repeat(1 + number % 2 * 3000);
        fs::write(here.join("current"), version(0))?;
        let read = || -> Result<usize> {
            let text = fs::read_to_string(there.join("current"))?;
            let number = text.split(' ').nth(1).unwrap_or_default().parse::<usize>();
            let number = number.map_err(|_| anyhow::anyhow!("it read {text:.60}"))?;
            ensure!(text == version(number), "version {number} is not whole");
            Ok(number)
        };
        // Long enough for the writer to hold the directory alone more than once.
        let end = Instant::now() + Duration::from_secs(7);
        let mut written = 0;
        while Instant::now() < end {
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| -> Result<()> {
                let reader = scope.spawn(|| -> Result<usize> {
                    let (mut newest, mut reads) = (0, 0);
                    while !is_over.load(Ordering::Relaxed) {
                        let number = read()?;
                        ensure!(number >= newest, "version {number} after {newest}");
                        (newest, reads) = (number, reads + 1);
                    }
                    Ok(reads)
                });
                for _ in 0..20 {
                    written += 1;
                    fs::write(here.join("next"), version(written))?;
                    fs::rename(here.join("next"), here.join("current"))?;
                }
                is_over.store(true, Ordering::Relaxed);
                let reads = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
                ensure!(reads > 0, "nothing was read meanwhile");
                Ok(())
            })?;
            let last = read()?;
            ensure!(last == written, "version {last} after {written} was renamed");
        }
        Ok(())
    })
}

/// Promise 6: A file stays usable through an open handle after its last name was removed, here
/// or on another client.
#[test]
fn a_file_unlinked_elsewhere_stays_open_here() -> Result<()> {
    with_two(|_, here, there| {
        fs::write(here.join("f"), "still here")?;
        let mut file = File::open(here.join("f"))?;
        fs::remove_file(there.join("f"))?;
        ensure!(!here.join("f").exists());
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        file.rewind()?;
        ensure!(text == "still here", "{text:?}");
        Ok(())
    })
}

/// Promise 4: Attributes and extended attributes that were changed on one client are seen by
/// the next stat on any other.
#[test]
fn attributes_follow() -> Result<()> {
    with_two(|lab, here, there| {
        use std::os::unix::fs::MetadataExt;
        fs::write(here.join("f"), "x")?;
        ensure!(fs::metadata(there.join("f"))?.mode() & 0o777 != 0o600);
        lab.shell("chmod 600 f && touch -d @1234567890 f && setfattr -n user.note -v seen f")?;
        let metadata = fs::metadata(there.join("f"))?;
        ensure!(metadata.mode() & 0o777 == 0o600 && metadata.mtime() == 1_234_567_890);
        let note = tieline_lab::shell(there, "getfattr --only-values -n user.note f")?;
        ensure!(note == "seen", "{note:?}");
        Ok(())
    })
}

/// Promise 66: What a program has written is seen by the next stat, open or change of any other
/// client, whether it has closed the file or not; of two who write, who wrote last is last.
#[test]
fn what_is_open_here_is_seen_there() -> Result<()> {
    let script = r"
import mmap, os, sys
here, there = sys.argv[1:]
def same(what, found, wanted):
    assert found == wanted, f'{what}: {found!r}, not {wanted!r}'
for turn in range(10):
    one, other = f'{here}/f{turn}', f'{there}/f{turn}'
    f = os.open(one, os.O_RDWR | os.O_CREAT)
    os.pwrite(f, b'x' * 100000, 0)
    same('size', os.stat(other).st_size, 100000)
    os.pwrite(f, b'y' * 10, 100000)
    listed = {entry.name: entry.stat().st_size for entry in os.scandir(there)}
    same('size of a listing', listed[f'f{turn}'], 100010)
    os.pwrite(f, b'z' * 10, 100010)
    g = os.open(other, os.O_RDWR)
    same('bytes', os.pread(g, 30, 100000), b'y' * 10 + b'z' * 10)
    os.truncate(other, 9304)
    same('cut there', os.fstat(f).st_size, 9304)
    # Now both write.
    os.pwrite(f, b'a' * 5000, 0)
    os.pwrite(g, b'b' * 100, 100)
    os.pwrite(f, b'c' * 10, 120)
    wanted = b'a' * 100 + b'b' * 20 + b'c' * 10 + b'b' * 70 + b'a' * 10
    for at in (one, other):
        with open(at, 'rb') as file:
            same('of two writers', file.read(210), wanted)
    os.close(f)
    os.pwrite(g, b'd', 0)
    same('after a close', open(one, 'rb').read(1), b'd')
    os.close(g)
# One who wrote before, and has it open still.
f = os.open(f'{here}/f0', os.O_WRONLY)
os.pwrite(f, b'e' * 300000, 0)
with open(f'{there}/f0', 'r+b', buffering=0) as file:
    os.pwrite(file.fileno(), b'f' * 100, 100)
for folder in (here, there):
    same('over it', open(f'{folder}/f0', 'rb').read(300000).count(b'f'), 100)
os.close(f)
# Lines of two.
f, g = (os.open(f'{at}/lines', os.O_RDWR | os.O_CREAT | os.O_APPEND) for at in (here, there))
for line in range(10):
    os.write(f, b'A' * 10)
    same('lines', os.fstat(g).st_size, 20 * line + 10)
    os.write(g, b'B' * 10)
    same('lines', os.fstat(f).st_size, 20 * line + 20)
# Stored in memory, and nothing said of it.
f = os.open(f'{here}/mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 65536)
memory = mmap.mmap(f, 65536)
for turn in range(10):
    memory[turn * 1000:turn * 1000 + 5] = b'store'
    with open(f'{there}/mapped', 'rb') as file:
        same('mapped', file.read()[turn * 1000:turn * 1000 + 5], b'store')
";
    with_two(|_, here, there| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]).arg(here).arg(there);
        let done = tieline_lab::program::finish(&mut command, Duration::from_secs(120))?;
        done.succeed("what is open here").map(drop)
    })
}

/// A file that was made without a name and got one hears of changes elsewhere, as any other.
#[test]
fn a_file_that_got_its_name_later_is_like_others() -> Result<()> {
    with_two(|_, here, there| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(here, flags, 0o644.into())?);
        (&file).write_all(b"first")?;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (at, name) = (rustix::fs::CWD, here.join("file"));
        rustix::fs::linkat(at, itself, at, name, AtFlags::SYMLINK_FOLLOW)?;
        fs::write(there.join("file"), "second and longer")?;
        fs::set_permissions(there.join("file"), fs::Permissions::from_mode(0o600))?;
        let seen = file.metadata()?;
        ensure!((seen.len(), seen.mode() & 0o777) == (17, 0o600), "{seen:?}");
        let mut text = [0; 17];
        file.read_exact_at(&mut text, 0)?;
        ensure!(&text == b"second and longer", "{}", String::from_utf8_lossy(&text));
        fs::remove_file(there.join("file"))?;
        ensure!(file.metadata()?.nlink() == 0, "it has a name");
        Ok(())
    })
}

/// What one client writes to a file that has no name any more is read by another that has it open.
#[test]
fn a_file_without_a_name_is_written_and_read_by_two() -> Result<()> {
    with_two(|_, here, there| {
        fs::write(here.join("file"), "one")?;
        let open =
            |mount: &Path| OpenOptions::new().read(true).write(true).open(mount.join("file"));
        let (writer, reader) = (open(here)?, open(there)?);
        let seen = || -> Result<[u8; 3]> {
            let mut bytes = [0; 3];
            reader.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        fs::remove_file(there.join("file"))?;
        ensure!(&seen()? == b"one");
        for text in [b"two", b"six"] {
            writer.write_all_at(text, 0)?;
            ensure!(&seen()? == text, "{:?}", seen()?);
        }
        Ok(())
    })
}

/// Whatever was looked at while it was written has the times in the end that all see.
#[test]
fn times_are_the_same_everywhere_once_a_file_is_closed() -> Result<()> {
    with_two(|_, here, there| {
        for what in ["look", "path", "link", "cut", "list"] {
            for round in 0..3 {
                let name = format!("{what}-{round}");
                let path = here.join(&name);
                let file = File::create(&path)?;
                (&file).write_all(&[7; 1000])?;
                match what {
                    "look" => assert!(file.metadata()?.is_file()),
                    "path" => assert!(fs::metadata(&path)?.is_file()),
                    "link" => fs::hard_link(&path, here.join(format!("{name}-too")))?,
                    "cut" => file.set_len(500)?,
                    _ => drop(names(here)?),
                }
                drop(file);
                let times = |mount: &Path| -> Result<_> {
                    let seen = fs::metadata(mount.join(&name))?;
                    Ok([seen.mtime(), seen.mtime_nsec(), seen.ctime(), seen.ctime_nsec()])
                };
                let (ours, theirs) = (times(here)?, times(there)?);
                ensure!(ours == theirs, "{name}: {ours:?} here, {theirs:?} there");
            }
        }
        Ok(())
    })
}

//! What POSIX promises to programs, one behaviour after the other, on one mount.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use tieline_lab::{program, with_federation};

/// Bytes that differ from place to place, so that a shifted or repeated chunk shows.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

#[test]
fn names_links_and_attributes() -> Result<()> {
    with_federation(|lab| {
        let at = |name: &str| lab.mount().join(name);

        // Hard links: one inode, one count, data seen through each name.
        fs::write(at("one"), "first")?;
        fs::hard_link(at("one"), at("two"))?;
        ensure!(fs::metadata(at("one"))?.nlink() == 2);
        ensure!(fs::metadata(at("one"))?.ino() == fs::metadata(at("two"))?.ino());
        fs::write(at("two"), "second")?;
        ensure!(fs::read_to_string(at("one"))? == "second");
        fs::remove_file(at("one"))?;
        ensure!(fs::metadata(at("two"))?.nlink() == 1);

        // Symlinks.
        symlink("two", at("symbolic"))?;
        ensure!(fs::read_to_string(at("symbolic"))? == "second");
        ensure!(fs::read_link(at("symbolic"))?.as_os_str() == "two");
        symlink("loop", at("loop"))?;
        let error = fs::read(at("loop")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::ELOOP), "{error}");

        // Rename over a file; rename of a directory below itself; rmdir of a full one.
        fs::write(at("new"), "newer")?;
        fs::rename(at("new"), at("two"))?;
        ensure!(fs::read_to_string(at("two"))? == "newer");
        fs::create_dir_all(at("outer/inner"))?;
        let error = fs::rename(at("outer"), at("outer/inner/x")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EINVAL), "{error}");
        let error = fs::remove_dir(at("outer")).unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::ENOTEMPTY), "{error}");
        ensure!(fs::metadata(at("outer"))?.nlink() == 3);

        // Modes, times, sizes.
        fs::set_permissions(at("two"), fs::Permissions::from_mode(0o600))?;
        ensure!(fs::metadata(at("two"))?.mode() & 0o7777 == 0o600);
        lab.shell("touch -d '2012-05-21 10:11:12.5 UTC' two")?;
        let metadata = fs::metadata(at("two"))?;
        ensure!((metadata.mtime(), metadata.mtime_nsec()) == (1_337_595_072, 500_000_000));

        // Names: 255 bytes are fine, 256 are not.
        fs::write(at(&"n".repeat(255)), "long")?;
        let error = fs::write(at(&"n".repeat(256)), "longer").unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::ENAMETOOLONG), "{error}");

        // Exclusive creation.
        let again = OpenOptions::new().write(true).create_new(true).open(at("two"));
        ensure!(again.unwrap_err().kind() == ErrorKind::AlreadyExists);
        Ok(())
    })
}

#[test]
fn extended_attributes() -> Result<()> {
    with_federation(|lab| {
        let said = lab.shell(
            r#"
            value() { getfattr --only-values -n "$1" "$2"; echo; }
            touch f
            setfattr -n user.colour -v green f; value user.colour f
            setfattr -n user.colour -v blue f; value user.colour f
            setfattr -n user.more -v 1 f; getfattr -d f | grep -c '^user'
            setfattr -x user.colour f; ! getfattr -n user.colour f 2>/dev/null
            mkdir d; setfattr -n user.kind -v folder d; value user.kind d
            "#,
        )?;
        ensure!(said == "green\nblue\n2\nfolder\n", "{said}");
        Ok(())
    })
}

#[test]
fn open_files_outlive_their_names() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("gone");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let bytes = pattern(6_000_000, 1);
        file.write_all(&bytes)?;
        fs::remove_file(&path)?;
        ensure!(!path.exists());
        ensure!(file.metadata()?.nlink() == 0);
        let mut read = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut read)?;
        ensure!(read == bytes, "the unlinked file changed");
        file.write_all(b"more")?;
        file.sync_all()?;
        ensure!(file.metadata()?.len() == 6_000_004);
        // Replaced by a rename, the old file lives on as well.
        fs::write(&path, "old")?;
        let mut old = File::open(&path)?;
        fs::write(lab.mount().join("new"), "new")?;
        fs::rename(lab.mount().join("new"), &path)?;
        let mut text = String::new();
        old.read_to_string(&mut text)?;
        ensure!(text == "old" && fs::read_to_string(&path)? == "new");
        Ok(())
    })
}

/// Promise 13: What was never written reads as zeros and takes no space.
/// As a local file system has it: no names, no links, and no stale handle.
#[test]
fn who_is_in_a_directory_that_is_removed_sees_it_empty() -> Result<()> {
    with_federation(|lab| {
        let script = r"
import errno, os, subprocess, sys
here, there = sys.argv[1:]
os.chdir(here)
for who in ('here', 'there'):
    os.makedirs(who + '/inner')
    os.sync()
    os.chdir(who + '/inner')
    assert os.listdir('.') == []
    folder = os.open('.', os.O_RDONLY)
    subprocess.run(['rmdir', (here if who == 'here' else there) + '/' + who + '/inner'], check=True)
    left = os.fstat(folder)
    assert left.st_nlink == 0 and left.st_mode & 0o777 == 0o755, (who, left)
    assert os.stat('.').st_ino == left.st_ino
    assert os.listdir(folder) == [], who
    # Other programs have their say of it from `ls`.
    assert subprocess.run(['ls', '-la'], capture_output=True).returncode == 0, who
    if who == 'here':
        for work in (lambda: open('f', 'w'), lambda: os.mkdir('d'), lambda: os.stat('f')):
            try:
                work()
                raise SystemExit('done in a directory that is gone')
            except OSError as error:
                assert error.errno == errno.ENOENT, error
    os.close(folder)
    os.chdir(here)
";
        let other = lab.mount_again()?;
        let paths = [lab.mount(), other.as_path()].map(|path| path.to_string_lossy().into_owned());
        program::call("python3", &["-c", script, &paths[0], &paths[1]]).map(drop)
    })
}

#[test]
fn holes_truncation_and_overwriting() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("sparse");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        file.write_all_at(b"begin", 0)?;
        file.write_all_at(b"end", 40 << 20)?;
        file.sync_all()?;
        let mut hole = [7_u8; 100];
        file.read_exact_at(&mut hole, 20 << 20)?;
        ensure!(hole == [0; 100], "a hole reads as zeros");
        let next_hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0))?;
        let next_data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(next_hole))?;
        ensure!((5..=40 << 20).contains(&next_hole), "hole at {next_hole}");
        ensure!((next_hole..=40 << 20).contains(&next_data), "data at {next_data}");
        ensure!(file.metadata()?.blocks() * 512 < 40 << 20, "holes take no space");

        // Shrink, grow again: the cut part is zero, not what it was.
        file.set_len(3)?;
        file.set_len(10)?;
        file.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        ensure!(text == b"beg\0\0\0\0\0\0\0", "{text:?}");

        // Overwrite across chunk ends, and check against memory.
        let mut model = pattern(13 << 20, 2);
        file.write_all_at(&model, 0)?;
        for (offset, length) in
            [(4 << 20, 3_usize), ((4 << 20) - 5, 10), (1000, 9 << 20), (12345, 1)]
        {
            let patch = pattern(length, offset as u64);
            file.write_all_at(&patch, offset as u64)?;
            model[offset..offset + length].copy_from_slice(&patch);
        }
        file.set_len(11 << 20)?;
        model.truncate(11 << 20);
        ensure!(fs::read(&path)? == model, "overwritten bytes differ before close");
        drop(file);
        ensure!(fs::read(&path)? == model, "overwritten bytes differ after close");
        ensure!(fs::read(lab.mount_again()?.join("sparse"))? == model, "another client differs");
        // O_TRUNC.
        File::create(&path)?;
        ensure!(fs::metadata(&path)?.len() == 0);
        Ok(())
    })
}

#[test]
fn nobody_is_promised_more_room_than_there_is() -> Result<()> {
    with_federation(|lab| {
        lab.shell(
            "fallocate -l 1M f && test $(stat -c %s f) = 1048576 && fallocate -n -l 2M f && \
             test $(stat -c %s f) = 1048576 && ! fallocate -l 4E f 2> told && \
             grep -q 'No space' told && ! fallocate -n -l 4E f && test $(stat -c %s f) = 1048576",
        )
        .map(drop)
    })
}

#[test]
fn appenders_lose_nothing() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("log");
        std::thread::scope(|scope| -> Result<()> {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let path = path.clone();
                    scope.spawn(move || -> Result<()> {
                        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
                        for line in 0..200 {
                            file.write_all(format!("{writer} {line}\n").as_bytes())?;
                        }
                        Ok(())
                    })
                })
                .collect();
            for writer in writers {
                writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            }
            Ok(())
        })?;
        let text = fs::read_to_string(&path)?;
        ensure!(text.lines().count() == 800, "{} lines", text.lines().count());
        for writer in 0..4 {
            let prefix = format!("{writer} ");
            let own: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            let in_order: Vec<_> = (0..200).map(|line| line.to_string()).collect();
            ensure!(own == in_order, "writer {writer}'s lines are out of order");
        }
        Ok(())
    })
}

/// What zlib says of a file, and what the file says of itself.
fn sums(lab: &tieline_lab::Federation, name: &str) -> Result<(String, String)> {
    let said = lab.shell(&format!(
        r#"
        python3 -c 'import sys, zlib
print("%08x" % zlib.adler32(open(sys.argv[1], "rb").read()))' {name}
        getfattr --only-values -n user.tieline.adler32 {name}
        "#
    ))?;
    let (zlib, own) = said.trim().split_once('\n').context("two lines")?;
    Ok((zlib.to_owned(), own.to_owned()))
}

/// Promise 17: The extended attribute user.tieline.adler32 of a file is the Adler-32 of its bytes.
#[test]
fn the_adler32_attribute_is_the_sum_of_the_bytes() -> Result<()> {
    with_federation(|lab| {
        for (name, length) in [("none", 0), ("inline", 1000), ("one", 100_000), ("more", 9 << 20)] {
            fs::write(lab.mount().join(name), pattern(length, length as u64))?;
            let (zlib, own) = sums(lab, name)?;
            ensure!(own == zlib, "{name}: {own} for {zlib}");
        }
        // After an overwrite it is another.
        let file = OpenOptions::new().write(true).open(lab.mount().join("more"))?;
        file.write_all_at(b"changed", 5 << 20)?;
        drop(file);
        let (zlib, own) = sums(lab, "more")?;
        ensure!(own == zlib, "after an overwrite: {own} for {zlib}");
        Ok(())
    })
}

/// Promise 14: Stores through a shared mapping are in the file after msync, and seen by other
/// clients that open it then.
#[test]
fn mapped_memory_is_the_file() -> Result<()> {
    with_federation(|lab| {
        let said = lab.shell(
            r#"python3 - <<'PROGRAM'
import mmap, os
with open("mapped", "wb") as file:
    file.truncate(1 << 20)
with open("mapped", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
    view[0:5] = b"first"
    view[524288:524294] = b"middle"
    view[-4:] = b"last"
    view.flush()
    view.close()
data = open("mapped", "rb").read()
print(data[:5], data[524288:524294], data[-4:], len(data))
with open("mapped", "r+b") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.pwrite(file.fileno(), b"FIRST", 0)
    print(view[0:5])
PROGRAM"#,
        )?;
        ensure!(said == "b'first' b'middle' b'last' 1048576\nb'FIRST'\n", "{said}");
        let far = fs::read(lab.mount_again()?.join("mapped"))?;
        ensure!(far.get(..5) == Some(b"FIRST".as_slice()) && far.ends_with(b"last"));
        Ok(())
    })
}

#[test]
fn a_large_file_comes_back_as_it_was() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("large");
        let block = pattern(8 << 20, 3);
        let mut file = File::create(&path)?;
        for round in 0..32_u8 {
            let rotated: Vec<u8> = block.iter().map(|byte| byte ^ round).collect();
            file.write_all(&rotated)?;
        }
        file.sync_all()?;
        drop(file);
        for mount in [lab.mount().to_owned(), lab.mount_again()?] {
            let mut file = File::open(mount.join("large"))?;
            ensure!(file.metadata()?.len() == 256 << 20);
            let mut read = vec![0; 8 << 20];
            for round in 0..32_u8 {
                file.read_exact(&mut read).with_context(|| format!("block {round}"))?;
                let is_same = read.iter().zip(&block).all(|(byte, was)| *byte == was ^ round);
                ensure!(is_same, "block {round} differs at {mount:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn writers_of_different_files_do_not_disturb_each_other() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        let mounts = [lab.mount().to_owned(), far];
        std::thread::scope(|scope| -> Result<()> {
            let writers: Vec<_> = (0..6_usize)
                .map(|writer| {
                    let path = mounts[writer % 2].join(format!("file-{writer}"));
                    scope.spawn(move || fs::write(path, pattern(5_000_000, writer as u64)))
                })
                .collect();
            for writer in writers {
                writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            }
            Ok(())
        })?;
        for writer in 0..6_usize {
            // Read where it was not written.
            let path = mounts[(writer + 1) % 2].join(format!("file-{writer}"));
            ensure!(fs::read(path)? == pattern(5_000_000, writer as u64), "file {writer} differs");
        }
        Ok(())
    })
}

/// Promise 16: Rename and link between the trees of two metadata targets are refused with
/// EXDEV, so that mv copies.
#[test]
fn between_trees_of_two_mdts_nothing_is_renamed_or_linked() -> Result<()> {
    with_federation(|lab| {
        let (here, there) = (lab.mount().join("f"), lab.mount().join("fnal/f"));
        fs::write(&here, "moved")?;
        for result in [fs::rename(&here, &there), fs::hard_link(&here, &there)] {
            let error = result.unwrap_err();
            ensure!(error.raw_os_error() == Some(libc::EXDEV), "{error}");
        }
        lab.shell("mv f fnal/f && test ! -e f && cp -a fnal/f back")?;
        ensure!(fs::read_to_string(&there)? == "moved");
        Ok(())
    })
}

#[test]
fn free_space_and_directories_can_be_asked() -> Result<()> {
    with_federation(|lab| {
        let usage = rustix::fs::statvfs(lab.mount())?;
        ensure!(usage.f_blocks > 0 && usage.f_bavail > 0 && usage.f_bavail <= usage.f_blocks);
        // A long listing arrives in pieces; each name once.
        lab.shell("mkdir d && cd d && touch $(seq -f 'name-%04.0f' 1500)")?;
        let mut names: Vec<_> = fs::read_dir(lab.mount().join("d"))?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        names.dedup();
        ensure!(names.len() == 1500, "{} names", names.len());
        Ok(())
    })
}

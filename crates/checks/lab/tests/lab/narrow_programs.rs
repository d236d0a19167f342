//! Programs of 32 bits: a real one, of a few system calls, without a library. It needs a compiler
//! for this machine alone, and a kernel that runs such programs.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::{Federation, with_federation};

/// Of a directory: `statfs`, `stat` of it and of each entry, and `getdents` as it was before files
/// were large. Prints `NAME INO_LISTED INO POSITION`, or the errno of what failed.
const NARROW: &str = r#"
static int call(int number, int a, int b, int c)
{
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
static int length(const char *text) { int n = 0; while (text[n]) n++; return n; }
static void say(const char *text) { call(4, 1, (int)text, length(text)); }
static void number(unsigned value)
{
    char text[12], *at = text + 11;
    *at = 0;
    do *--at = '0' + value % 10; while (value /= 10);
    say(" "); say(at);
}
struct stat { unsigned dev, ino; unsigned short mode, links, uid, gid; unsigned more[20]; };
struct statfs {
    unsigned type, bsize, blocks, bfree, bavail, files, ffree, id[2], namelen, frsize, more[8];
};
struct dirent { unsigned ino, off; unsigned short reclen; char name[]; };
static char buffer[700] __attribute__((aligned(8)));
static int failed(const char *what, int result)
{
    say(what); number(-result); say("\n");
    call(1, 1, 0, 0);
    return 1;
}
static void run(int *stack)
{
    struct stat found;
    struct statfs space;
    const char *path = (const char *)stack[2];
    int result, fd, at, count = 0, seeks = 0;
    if ((result = call(99, (int)path, (int)&space, 0)) < 0) failed("statfs", result);
    say("statfs"); number(space.blocks); number(space.frsize); number(space.files);
    number(space.ffree); say("\n");
    if ((result = call(12, (int)path, 0, 0)) < 0) failed("chdir", result);
    if ((result = call(106, (int)".", (int)&found, 0)) < 0) failed("stat", result);
    if ((fd = call(5, (int)".", 0200000, 0)) < 0) failed("open", fd);
    while ((result = call(141, fd, (int)buffer, sizeof buffer)) != 0) {
        unsigned last = 0;
        if (result < 0) failed("getdents", result);
        for (at = 0; at < result; at += ((struct dirent *)(buffer + at))->reclen) {
            struct dirent *entry = (struct dirent *)(buffer + at);
            int was = call(106, (int)entry->name, (int)&found, 0);
            if (was < 0) failed("stat", was);
            say(entry->name); number(entry->ino); number(found.ino); number(entry->off); say("\n");
            last = entry->off;
            count++;
        }
        /* From a position that telldir() gave. */
        if ((int)last < 0) failed("telldir", -(int)last);
        if ((result = call(19, fd, last, 0)) < 0) failed("lseek", result);
        seeks++;
    }
    say("end"); number(count); number(seeks > 1); say("\n");
    call(1, 0, 0, 0);
}
__asm__(".globl _start\n_start: mov %esp, %eax\n push %eax\n call enter\n");
void enter(int *stack) { run(stack); }
"#;

/// What such a program saw.
struct Seen {
    /// Blocks, their size, inodes, free inodes.
    space: [u64; 4],
    /// By name: the number as listed, as told by `stat`.
    numbers: BTreeMap<String, (u64, u64)>,
}

fn compile(lab: &Federation) -> Result<PathBuf> {
    let (source, narrow) = (lab.local("narrow.c"), lab.local("narrow"));
    fs::write(&source, NARROW)?;
    let mut compile = Command::new("gcc");
    compile.args(["-m32", "-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-pic", "-no-pie"]);
    compile.args(["-fno-stack-protector", "-fcf-protection=none", "-o"]).arg(&narrow).arg(&source);
    program::finish(&mut compile, DEADLINE)?.succeed("gcc -m32")?;
    Ok(narrow)
}

fn look(narrow: &Path, directory: &Path) -> Result<std::result::Result<Seen, String>> {
    let run = program::finish(Command::new(narrow).arg(directory), DEADLINE)?;
    let lines = || run.stdout.lines();
    if !run.status.success() {
        return Ok(Err(lines().last().unwrap_or_default().to_owned()));
    }
    let numbers = |line: &str| -> Result<Vec<u64>> {
        line.split(' ').skip(1).map(|word| Ok(word.parse()?)).collect()
    };
    let first = lines().next().context("it said nothing")?;
    let space = numbers(first)?.try_into().ok().context("four numbers")?;
    let mut seen = Seen { space, numbers: BTreeMap::new() };
    for line in lines().skip(1).filter(|line| !line.starts_with("end ")) {
        let name = line.split(' ').next().unwrap_or_default().to_owned();
        let [listed, told, _] = numbers(line)?[..] else { anyhow::bail!("{line}") };
        ensure!(seen.numbers.insert(name, (listed, told)).is_none(), "twice: {line}");
    }
    let end = lines().last().unwrap_or_default();
    ensure!(end == format!("end {} 1", seen.numbers.len()), "not in several steps: {end}");
    Ok(Ok(seen))
}

/// Promise 95: Counts of blocks and inodes fit into 32 bits, and df is right.
///
/// Promise 96: With `-o ino32` programs of 32 bits list and stat every file, and what is listed and
/// what stat tells is the same number, on all clients.
#[test]
fn programs_of_32_bits_work() -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        tieline_lab::skip("programs of 32 bits are tried on x86-64");
        return Ok(());
    }
    with_federation(|lab| {
        let narrow = compile(lab)?;
        // A tree of another MDT than the root's.
        let there = |mount: &Path| mount.join("fnal/old");
        fs::create_dir(there(lab.mount()))?;
        for index in 0..100 {
            fs::write(there(lab.mount()).join(format!("event{index}")), "x")?;
        }
        fs::hard_link(there(lab.mount()).join("event7"), there(lab.mount()).join("again7"))?;
        let refused = look(&narrow, &there(lab.mount()))?.err();
        let overflow = format!("stat {}", libc::EOVERFLOW);
        ensure!(refused.as_ref() == Some(&overflow), "without the option: {refused:?}");

        let short = |mount: &Path| -> Result<BTreeMap<String, (u64, u64)>> {
            let seen = look(&narrow, &there(mount))?;
            let seen = seen.map_err(|failed| anyhow::anyhow!("32 bits: {failed}"))?;
            let [blocks, size, inodes, free] = seen.space;
            let space = rustix::fs::statvfs(mount)?;
            ensure!(blocks * size == space.f_blocks * space.f_frsize, "{:?}", seen.space);
            ensure!(free > 1 << 30 && inodes > free, "{:?}", seen.space);
            // A program of 64 bits sees the same.
            for entry in fs::read_dir(there(mount))? {
                let entry = entry?;
                let name = entry.file_name().into_string().ok().context("a name")?;
                let number = (entry.ino(), entry.metadata()?.ino());
                ensure!(seen.numbers.get(&name) == Some(&number), "{name}: {number:?}");
                ensure!(number.0 == number.1 && number.0 != 0, "{name}: {number:?}");
            }
            Ok(seen.numbers)
        };
        let mut first = BTreeMap::new();
        lab.with_mount("ino32", |mount| {
            first = short(mount)?;
            ensure!(first.len() == 103, "{} entries", first.len());
            ensure!(first["again7"] == first["event7"]);
            let different: BTreeSet<_> = first.values().collect();
            // The parent is the root of that tree.
            ensure!(different.len() == 102, "{} numbers", different.len());
            // Hard links are told apart from files that merely share a number.
            lab.shell(&format!(
                "tar -C {0}/fnal -cf {1} old && mkdir {2} && tar -C {2} -xf {1} && \
                 diff -r {0}/fnal/old {2}/old && test {2}/old/event7 -ef {2}/old/again7 && \
                 test $(find {2}/old -type f -links 2 | wc -l) = 2",
                mount.display(),
                lab.local("old.tar").display(),
                lab.local("unpacked").display(),
            ))?;
            // Files made and moved here.
            fs::write(there(mount).join("new"), "x")?;
            let number = fs::metadata(there(mount).join("new"))?.ino();
            fs::rename(there(mount).join("new"), mount.join("fnal/newer"))?;
            ensure!(number == fs::metadata(mount.join("fnal/newer"))?.ino() && number < 1 << 32);
            Ok(())
        })?;
        fs::remove_dir(lab.local("own"))?;
        // Another client, another daemon.
        lab.with_mount("ino32,journal=off,relatime", |mount| {
            ensure!(short(mount)? == first, "other numbers on another client");
            Ok(())
        })?;
        Ok(())
    })
}

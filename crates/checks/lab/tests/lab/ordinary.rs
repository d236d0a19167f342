//! Ordinary work: the programs people use every day, doing on the mount what they do on a disk.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use tieline_lab::program::{self, shell};
use tieline_lab::{tree, with_federation};

/// A tree with what trees have: depth, names in other scripts, modes, links, times, empty files.
const MAKE_TREE: &str = r#"
    mkdir -p tree/a/b/c tree/empty "tree/with space" tree/größe
    printf hello > tree/a/hello; printf '' > tree/a/nothing
    head -c 100000 /dev/urandom > tree/a/b/some
    head -c 5000000 /dev/urandom > tree/a/b/c/more
    for i in $(seq 200); do printf '%s' "$i" > "tree/with space/$i"; done
    printf x > tree/größe/ünïcödé
    ln -s ../a/hello tree/empty/symbolic; ln -s nowhere tree/dangling
    ln tree/a/hello tree/a/b/hard
    chmod 640 tree/a/hello; chmod 755 tree/a/b/some; chmod 2750 tree/a
    touch -d '2011-03-07 12:34:56.789' tree/a/nothing
    mkfifo tree/fifo
"#;

#[test]
fn a_tree_copied_there_and_back_is_the_same() -> Result<()> {
    with_federation(|lab| {
        let local = lab.local("local");
        fs::create_dir(&local)?;
        shell(&local, MAKE_TREE)?;
        let (here, there) = (local.join("tree"), lab.mount().join("tree"));
        shell(&local, &format!("cp -a tree {}", there.display()))?;
        tree::compare(&here, &there)?;
        // A second client has nothing in its cache: what it sees came over the network.
        tree::compare(&here, &lab.mount_again()?.join("tree"))?;
        shell(&local, &format!("cp -a {} back", there.display()))?;
        tree::compare(&here, &local.join("back"))?;
        lab.shell("mv tree moved && rm -r moved && test -z \"$(ls)\" || ls")?;
        ensure!(!lab.mount().join("moved").exists());
        Ok(())
    })
}

#[test]
fn tar_extracts_and_archives() -> Result<()> {
    with_federation(|lab| {
        let local = lab.local("local");
        fs::create_dir(&local)?;
        shell(&local, MAKE_TREE)?;
        shell(&local, "tar --format=pax -cf tree.tar tree")?;
        lab.shell(&format!("tar xpf {}/tree.tar", local.display()))?;
        tree::compare(&local.join("tree"), &lab.mount().join("tree"))?;
        lab.shell(
            "tar --format=pax -cf again.tar tree && mkdir again && tar xpf again.tar -C again",
        )?;
        tree::compare(&local.join("tree"), &lab.mount().join("again/tree"))
    })
}

#[test]
fn git_clones_commits_and_finds_no_fault() -> Result<()> {
    with_federation(|lab| {
        let local = lab.local("origin");
        fs::create_dir(&local)?;
        let who = "git config user.name Test; git config user.email test@example.org";
        shell(
            &local,
            &format!(
                "git init -q .; {who}; for i in $(seq 60); do mkdir -p d$((i % 7)); \
                 seq $((i * 50)) > d$((i % 7))/f$i; done; git add .; git commit -qm one; \
                 seq 9 > new; git add .; git commit -qm two"
            ),
        )?;
        lab.shell(&format!(
            "git clone -q {} clone && cd clone && {who} && git fsck --full --strict \
             && seq 5 > third && git add . && git commit -qm three && git gc -q \
             && git fsck --full && git checkout -q HEAD~1 && test ! -e third \
             && git status --porcelain | wc -l | grep -qx 0",
            local.display()
        ))?;
        Ok(())
    })
}

#[test]
fn a_c_project_builds_and_runs() -> Result<()> {
    with_federation(|lab| {
        let said = lab.shell(
            r#"
            mkdir project && cd project
            for i in $(seq 12); do
                printf 'int part%s(void) { return %s; }\n' $i $i > part$i.c
            done
            { for i in $(seq 12); do echo "int part$i(void);"; done
              echo '#include <stdio.h>'
              echo 'int main(void) { int sum = 0;'
              for i in $(seq 12); do echo "sum += part$i();"; done
              echo 'printf("%d\n", sum); return 0; }'; } > main.c
            { echo 'OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))'
              printf 'sum: $(OBJECTS)\n\t$(CC) -o $@ $^\n'; } > Makefile
            make -s -j2 sum && ./sum
            make -q sum # nothing to do: the times are right
            touch part3.c && ! make -q sum && make -s sum && ./sum
            "#,
        )?;
        ensure!(said == "78\n78\n", "the program said {said:?}");
        Ok(())
    })
}

/// Runs a Python program inside the mount.
fn python(interpreter: &Path, folder: &Path, program: &str) -> Result<String> {
    let mut command = Command::new(interpreter);
    command.args(["-c", program]).current_dir(folder);
    program::finish(&mut command, program::DEADLINE)?.succeed("python")
}

#[test]
fn a_database_keeps_its_promises() -> Result<()> {
    with_federation(|lab| {
        let said = python(
            Path::new("python3"),
            lab.mount(),
            r#"
import sqlite3
for mode in ("delete", "truncate", "persist"):
    base = sqlite3.connect(f"events-{mode}.db")
    base.execute(f"pragma journal_mode={mode}")
    base.execute("create table hits (event integer, energy real)")
    for batch in range(5):
        with base:
            base.executemany("insert into hits values (?, ?)",
                             [(batch * 200 + i, i * 0.5) for i in range(200)])
    base.execute("begin")
    base.execute("delete from hits")
    base.rollback()
    base.execute("create index by_event on hits (event)")
    base.execute("vacuum")
    base.close()
    base = sqlite3.connect(f"events-{mode}.db")
    print(base.execute("pragma integrity_check").fetchone()[0],
          *base.execute("select count(*), sum(energy) from hits").fetchone())
"#,
        )?;
        let line = "ok 1000 49750.0\n";
        ensure!(said == line.repeat(3), "it said {said}");
        Ok(())
    })
}

#[test]
fn a_python_environment_lives_there() -> Result<()> {
    with_federation(|lab| {
        let said = lab.shell(
            "python3 -m venv --without-pip environment && mkdir package \
             && echo 'value = 42' > package/__init__.py \
             && environment/bin/python -c 'import json, package; print(package.value)' \
             && environment/bin/python -c 'import package; print(package.__cached__)'",
        )?;
        ensure!(said.starts_with("42\n"), "it said {said}");
        Ok(())
    })
}

#[test]
fn root_files_are_written_and_read() -> Result<()> {
    let Some(interpreter) = tieline_lab::python() else { return Ok(()) };
    with_federation(|lab| {
        let write = r#"
import numpy as np, uproot
with uproot.recreate("events.root") as file:
    file.mktree("events", {"pt": "float64", "n": "int32"})
    for batch in range(10):
        n = np.arange(20000, dtype="int32") + batch * 20000
        file["events"].extend({"pt": np.sqrt(n), "n": n})
"#;
        let read = r#"
import uproot
tree = uproot.open("events.root")["events"]
a = tree.arrays(library="np")
print(tree.num_entries, int(a["n"].sum()), round(float(a["pt"].sum())))
"#;
        python(&interpreter, lab.mount(), write)?;
        let expected = "200000 19999900000 59628256\n";
        let near = python(&interpreter, lab.mount(), read)?;
        let far = python(&interpreter, &lab.mount_again()?, read)?;
        let local = lab.local("events");
        fs::create_dir(&local)?;
        fs::copy(lab.mount().join("events.root"), local.join("events.root"))?;
        let on_disk = python(&interpreter, &local, read)?;
        ensure!(near == on_disk && far == on_disk, "{near}{far}{on_disk}{expected}");
        Ok(())
    })
}

#[test]
fn many_small_files_are_all_there() -> Result<()> {
    with_federation(|lab| {
        let said = lab.shell(
            "mkdir small && cd small && for i in $(seq 3000); do echo $i > f$i; done \
             && ls | wc -l && cat f* | sort -n | md5sum && seq 3000 | md5sum \
             && find . -name 'f*9' | wc -l && cd .. && rm -r small && test ! -e small",
        )?;
        let lines: Vec<_> = said.lines().collect();
        ensure!(lines.first() == Some(&"3000") && lines.last() == Some(&"300"), "{said}");
        ensure!(lines.get(1).context("line")? == lines.get(2).context("line")?, "{said}");
        Ok(())
    })
}

//! A data server that lies: its objects hold other bytes than those that were committed, with
//! checks, trailers and trees that fit them. Nobody hands such bytes to a program.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tieline_format::object::{ObjectFooter, ObjectTrailer};
use tieline_lab::nodes::{Clients, PATIENCE, bytes, folder};
use tieline_lab::{Federation, program, with_federation};
use tieline_types::checksum::block_checks;
use tieline_types::tree::Tree;

/// More than one request, and more than one chunk.
const LENGTH: usize = 6_000_000;
/// Where a program reads a little.
const LITTLE: u64 = 5_000_001;

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(File::open(path)?.sync_all()?)
}

/// The objects of a file at the OSTs of a site, of which one is named.
pub fn objects(lab: &Federation, path: &Path, site: &str) -> Result<(Vec<PathBuf>, String)> {
    let file = lab.json(&["getstripe", path.to_str().context("path")?])?;
    let (mut found, mut named) = (Vec::new(), String::new());
    for extent in file[0]["extents"].as_array().context("extents")? {
        for place in extent["chunk"]["places"].as_array().context("places")? {
            if place["site"] != site {
                continue;
            }
            let ost = place["ost"].as_u64().context("ost")?;
            let object = place["object"].as_str().context("object")?;
            let folder = lab.dir().join(format!("sites/{site}/ost{ost:04x}/objects"));
            let path = program::shell(&folder, &format!("find . -name '{object}'"))?;
            found.push(folder.join(path.trim()));
            named = format!("OST{ost:04x}");
        }
    }
    ensure!(!found.is_empty(), "no object at {site}");
    Ok((found, named))
}

/// Makes an object anew with other bytes, as who knows the format would.
pub fn forge(path: &Path, has_tree: bool) -> Result<()> {
    let object = fs::read(path)?;
    let footer = object.last_chunk::<{ ObjectFooter::LENGTH }>().context("a footer")?;
    let footer = ObjectFooter::decode(footer, object.len() as u64)?;
    let (data, tail) = object.split_at(footer.data_length as usize);
    let trailer = footer.trailer(&tail[..footer.trailer_length as usize])?;
    let data: Vec<u8> = data.iter().map(|byte| byte ^ 0x55).collect();
    let tree = has_tree.then(|| Tree::of(&data).to_values());
    let trailer = ObjectTrailer { checks: block_checks(&data), tree, ..trailer };
    let draft = path.with_extension("draft");
    fs::write(&draft, [&data[..], &trailer.to_tail(data.len() as u64)].concat())?;
    Ok(fs::rename(draft, path)?)
}

/// Nobody reads the file: not in whole, and not a little of it.
fn is_refused(file: &Path) -> Result<()> {
    let mut little = [0; 100];
    let read = [
        File::open(file)?.read_exact_at(&mut little, LITTLE),
        fs::read(file).map(drop),
        File::open(file)?.read_exact_at(&mut little, 0),
    ];
    for outcome in read {
        let code = outcome.as_ref().err().and_then(|error| error.raw_os_error());
        ensure!(code == Some(libc::EIO), "{}: {outcome:?}", file.display());
    }
    Ok(())
}

fn url(lab: &Federation, name: &str) -> Result<String> {
    let process = lab.process("mds-uf")?;
    let address = process["address"].as_str().context("an address")?;
    Ok(format!("tieline://{address}/extenci/{name}"))
}

/// Promise 160: No byte that a data server invented is handed to a program, whatever the server
/// says of it and whichever caches the reader has: the read fails, if no other place has the file's
/// own bytes.
#[test]
fn a_data_server_that_lies_is_not_believed() -> Result<()> {
    with_federation(|lab| {
        for word in ["does not match its checksum", "cannot be mended", "no place has"] {
            lab.expect_log(word);
        }
        let clients = Clients::new(lab);
        for has_tree in [true, false] {
            let name = format!("f-{has_tree}");
            let path = lab.mount().join(&name);
            write(&path, &bytes(9, LENGTH))?;
            let at_sites = ["uf", "fnal"].map(|site| objects(lab, &path, site));
            let found: Vec<_> = at_sites.into_iter().flatten().collect();
            ensure!(!found.is_empty(), "no object at either site");
            for object in found.iter().flat_map(|(objects, _)| objects) {
                forge(object, has_tree)?;
            }
            let (node, site) =
                (lab.local(&format!("node-{name}")), folder(lab, &format!("site-{name}"))?);
            let cached = [
                "wait=10s".to_owned(),
                format!("cache={}-alone", node.display()),
                format!("cache={},sitecache={}", node.display(), site.display()),
                format!("sitecache={}", site.display()),
            ];
            for options in cached {
                let mount = clients.mount(&options)?;
                is_refused(&mount.join(&name)).context(options)?;
                clients.unmount(&mount)?;
            }
            let to = lab.local(&format!("got-{name}"));
            for verb in [vec!["cat"], vec!["get"]] {
                let source = url(lab, &name)?;
                let to = to.display().to_string();
                let words = match verb[0] {
                    "get" => vec!["get", &source, &to],
                    _ => vec!["cat", &source],
                };
                let run = lab.try_tieline(&words)?;
                ensure!(!run.status.success() && run.stdout.is_empty(), "{}", run.stderr);
                let says = ["tieline fsck", "of file", &name];
                ensure!(says.iter().all(|part| run.stderr.contains(part)), "{}", run.stderr);
                ensure!(found.iter().any(|(_, ost)| run.stderr.contains(ost)), "{}", run.stderr);
            }
            ensure!(!to.exists(), "a file was made");
        }
        Ok(())
    })
}

/// Promise 161: A file with another mirror is read with its own bytes while one of its data servers
/// lies, and the false copy is made anew.
#[test]
fn the_other_mirror_is_read_and_the_false_copy_is_mended() -> Result<()> {
    with_federation(|lab| {
        lab.expect_log("does not match its checksum");
        let folder = lab.mount().join("mirrored");
        fs::create_dir(&folder)?;
        let shown = folder.to_str().context("path")?;
        lab.tieline(&["setstripe", "-N", "-p", "uf", "-N", "-p", "fnal", shown])?;
        let (path, wanted) = (folder.join("f"), bytes(11, LENGTH));
        write(&path, &wanted)?;
        let shown = path.to_str().context("path")?;
        let is_whole =
            || lab.try_tieline(&["mirror", "verify", shown]).is_ok_and(|run| run.status.success());
        program::until("both copies are good", PATIENCE, is_whole)?;
        for site in ["uf", "fnal"] {
            let (objects, _) = objects(lab, &path, site)?;
            let good: Vec<Vec<u8>> = objects.iter().map(fs::read).collect::<Result<_, _>>()?;
            objects.iter().try_for_each(|object| forge(object, true))?;
            // Not every chunk is read there: which is nearer is measured.
            let are_mended = || -> Result<bool> {
                ensure!(fs::read(lab.mount_again()?.join("mirrored/f"))? == wanted, "false bytes");
                let now = objects.iter().map(fs::read).collect::<Result<Vec<_>, _>>();
                Ok(now.is_ok_and(|now| now.iter().zip(&good).any(|(now, good)| now == good)))
            };
            let mut outcome = are_mended();
            program::until("a copy is made anew", PATIENCE, || {
                outcome = are_mended();
                outcome.as_ref().map_or(true, |is_mended| *is_mended)
            })?;
            outcome?;
            // The others are found by who looks for them.
            lab.try_tieline(&["mirror", "verify", shown])?;
            program::until("both copies are good again", PATIENCE, is_whole)?;
        }
        Ok(())
    })
}

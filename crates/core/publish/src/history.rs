//! What a repository says of its past: the tags of the history, and the log of roots.
//!
//! Clients need neither. Tools that roll back, replicate or collect garbage do.

use crate::catalog::CatalogError;
use crate::catalog::draft::image;
use crate::hash;
use flate2::read::ZlibDecoder;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, params};
use std::io::Read;
use tieline_types::{Digest, RepositoryName};

/// The log, at the top of the storage.
pub const REFLOG: &str = ".cvmfsreflog";
/// The largest database that is read.
const BYTES_MAX: u64 = 64 << 20;

const HISTORY: &str = "
    CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER,
        description TEXT, size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name));
    CREATE TABLE branches (branch TEXT, parent TEXT, initial_revision INTEGER,
        CONSTRAINT pk_branch PRIMARY KEY (branch));
    CREATE TABLE recycle_bin (hash TEXT, flags INTEGER, CONSTRAINT pk_hash PRIMARY KEY (hash));
    CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
    INSERT INTO branches (branch, parent, initial_revision) VALUES ('', NULL, 0);
    INSERT INTO properties (key, value) VALUES ('schema', '1.0'), ('schema_revision', '3');";

const LOG: &str = "
    CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER,
        CONSTRAINT pk_refs PRIMARY KEY (hash));
    CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
    INSERT INTO properties (key, value) VALUES ('schema', '1.0'), ('schema_revision', '0');";

/// A revision, as a tag has it.
pub struct Tagged<'t> {
    pub catalog: &'t Digest,
    pub size: u64,
    pub revision: u64,
    /// Seconds since 1970.
    pub at: u64,
}

/// The history with another head: what was the head is to be gone back to. `before`: its object, as
/// it was stored, and its digest.
pub fn history(
    repository: &RepositoryName,
    before: Option<(&Digest, &[u8])>,
    head: &Tagged<'_>,
) -> Result<Vec<u8>, CatalogError> {
    let mut db = Connection::open_in_memory()?;
    db.execute_batch("BEGIN")?;
    db.execute_batch(HISTORY)?;
    let previous = before.map_or_else(|| "0".repeat(40), |(digest, _)| hash::text(digest));
    for (key, value) in [("fqrn", repository.as_str()), ("previous_revision", &previous)] {
        let say = "INSERT INTO properties (key, value) VALUES (?, ?)";
        db.execute(say, params![key, value])?;
    }
    if let Some((_, packed)) = before
        && let Some(known) = opened(packed)?
    {
        let columns = "name, hash, revision, timestamp, channel, description, size, branch";
        let mut tags = known.prepare(&format!("SELECT {columns} FROM tags ORDER BY name"))?;
        let mut rows = tags.query([])?;
        let keep = format!("INSERT INTO tags ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
        while let Some(row) = rows.next()? {
            let name = match row.get::<_, String>(0)?.as_str() {
                "trunk-previous" => continue,
                "trunk" => "trunk-previous".to_owned(),
                other => other.to_owned(),
            };
            let description = match name.as_str() {
                "trunk-previous" => "default undo target".to_owned(),
                _ => row.get::<_, Option<String>>(5)?.unwrap_or_default(),
            };
            db.execute(
                &keep,
                params![
                    name,
                    row.get::<_, String>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(3)?,
                    row.get::<_, i64>(4)?,
                    description,
                    row.get::<_, i64>(6)?,
                    row.get::<_, Option<String>>(7)?.unwrap_or_default(),
                ],
            )?;
        }
    }
    db.execute(
        "INSERT INTO tags (name, hash, revision, timestamp, channel, description, size, branch)
         VALUES ('trunk', ?, ?, ?, 0, 'current HEAD', ?, '')",
        params![hash::text(head.catalog), head.revision as i64, head.at as i64, head.size as i64],
    )?;
    db.execute_batch("COMMIT")?;
    image(&mut db)
}

/// `None`: it cannot be unpacked; its tags are lost then, and nothing else.
fn opened(packed: &[u8]) -> Result<Option<Connection>, CatalogError> {
    let mut bytes = Vec::new();
    let stream = ZlibDecoder::new(packed);
    let read = stream.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > BYTES_MAX {
        return Ok(None);
    }
    database(&bytes).map(Some)
}

fn database(bytes: &[u8]) -> Result<Connection, CatalogError> {
    let mut db = Connection::open_in_memory()?;
    db.deserialize_read_exact(MAIN_DB, bytes, bytes.len(), false)?;
    Ok(db)
}

/// What the log calls the kinds of what is in it.
#[derive(Clone, Copy)]
pub enum Logged {
    Catalog = 0,
    Certificate = 1,
    History = 2,
}

/// The log with more in it; it begins anew where `before` is none.
pub fn reflog(
    repository: &RepositoryName,
    before: Option<&[u8]>,
    more: &[(Digest, Logged)],
    at: u64,
) -> Result<Vec<u8>, CatalogError> {
    let known = before.filter(|bytes| bytes.len() as u64 <= BYTES_MAX).map(database);
    let is_log = |db: &Connection| {
        let has = "SELECT count(*) FROM sqlite_schema WHERE name = 'refs' AND type = 'table'";
        db.query_row(has, [], |row| row.get::<_, i64>(0)).optional()
    };
    let known = known.and_then(Result::ok).filter(|db| matches!(is_log(db), Ok(Some(1))));
    let mut db = match known {
        Some(db) => db,
        None => {
            let db = Connection::open_in_memory()?;
            db.execute_batch(LOG)?;
            let say = "INSERT INTO properties (key, value) VALUES ('fqrn', ?)";
            db.execute(say, [repository.as_str()])?;
            db
        }
    };
    db.execute_batch("BEGIN")?;
    for (digest, kind) in more {
        let log = "INSERT OR REPLACE INTO refs (hash, type, timestamp) VALUES (?, ?, ?)";
        db.execute(log, params![hash::text(digest), *kind as i64, at as i64])?;
    }
    db.execute_batch("COMMIT")?;
    image(&mut db)
}

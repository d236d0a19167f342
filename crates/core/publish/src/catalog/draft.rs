//! Writes a catalog, of schema 2.5 in its revision 7.
//!
//! The same rows in the same order make the same bytes, but for what is said of the revision: so a
//! catalog that would have only that anew is left as it was ([`Draft::finish`]).

use super::{CatalogError, Counters, Piece, counters};
use crate::hash::{self, Kind, PathHash};
use crate::row::{Raw, Row};
use rusqlite::{Connection, MAIN_DB, params};
use tieline_types::{Algorithm, Digest, Encoding};

const SCHEMA: &str = "
    CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER,
        parent_2 INTEGER, hardlinks INTEGER, hash BLOB, size INTEGER, mode INTEGER, mtime INTEGER,
        mtimens INTEGER, flags INTEGER, name TEXT, symlink TEXT, uid INTEGER, gid INTEGER,
        xattr BLOB, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
    CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
    CREATE TABLE chunks (md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER,
        hash BLOB, CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size),
        FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog (md5path_1, md5path_2));
    CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER,
        CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
    CREATE TABLE bind_mountpoints (path TEXT, sha1 TEXT, size INTEGER,
        CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path));
    CREATE TABLE statistics (counter TEXT, value INTEGER,
        CONSTRAINT pk_statistics PRIMARY KEY (counter));
    CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
    BEGIN;";

/// What a catalog says of its own history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    pub revision: u64,
    /// Seconds since 1970.
    pub modified: u64,
    /// As it is spelt; zeroes in the first.
    pub previous: String,
    /// Of the repository's root only, in seconds.
    pub ttl: Option<u64>,
}

/// What there was under the same path before.
pub struct Before {
    pub digest: Digest,
    pub said: Said,
}

/// A catalog that is being written.
pub struct Draft {
    db: Connection,
    prefix: Vec<u8>,
    own: Counters,
    below: Counters,
}

/// A catalog that was written.
pub struct Written {
    pub digest: Digest,
    /// Unpacked.
    pub size: u64,
    /// All of it, and all that is below.
    pub counters: Counters,
    /// To be stored; `None`: it is there, for nothing changed.
    pub packed: Option<Vec<u8>>,
}

impl Draft {
    /// Of what is below a path, which is empty for the repository's root.
    pub fn new(prefix: &[u8]) -> Result<Self, CatalogError> {
        let db = Connection::open_in_memory()?;
        db.execute_batch(SCHEMA)?;
        let (own, below) = (Counters::default(), Counters::default());
        Ok(Self { db, prefix: prefix.to_vec(), own, below })
    }

    pub fn add(&mut self, rows: &[(Row, Vec<Piece>)]) -> Result<(), CatalogError> {
        // Text is bound as bytes: names need not be UTF-8.
        let mut row_in = self.db.prepare(
            "INSERT INTO catalog (md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size,
                mode, mtime, mtimens, flags, name, symlink, uid, gid, xattr)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?)",
        )?;
        let mut piece_in = self.db.prepare(
            "INSERT INTO chunks (md5path_1, md5path_2, offset, size, hash) VALUES (?, ?, ?, ?, ?)",
        )?;
        for (row, pieces) in rows {
            let Raw { path, parent, .. } = row.raw();
            let raw = row.raw();
            row_in.execute(params![
                path.0,
                path.1,
                parent.0,
                parent.1,
                raw.hardlinks,
                raw.hash,
                raw.size,
                raw.mode,
                raw.mtime,
                raw.mtimens,
                raw.flags,
                raw.name,
                raw.symlink,
                raw.uid,
                raw.gid,
                raw.xattr,
            ])?;
            for piece in pieces {
                let (offset, length) = (piece.offset as i64, piece.length as i64);
                let hash = piece.digest.as_bytes();
                piece_in.execute(params![path.0, path.1, offset, length, hash])?;
            }
            self.own.count(row, pieces.len());
        }
        Ok(())
    }

    /// Another catalog goes on at a path.
    pub fn nest(&mut self, path: &[u8], catalog: &Written) -> Result<(), CatalogError> {
        let (text, size) = (hash::text(&catalog.digest), catalog.size as i64);
        let nest = "INSERT INTO nested_catalogs (path, sha1, size) VALUES (CAST(? AS TEXT), ?, ?)";
        self.db.execute(nest, params![path, text, size])?;
        self.own.nest();
        self.below.add(&catalog.counters);
        Ok(())
    }

    /// As it was before, if nothing else would change than what `now` says.
    pub fn finish(mut self, before: Option<&Before>, now: &Said) -> Result<Written, CatalogError> {
        for (at, name) in counters::NAMES.into_iter().enumerate() {
            for (whose, counters) in [("self", &self.own), ("subtree", &self.below)] {
                let value = counters.0[at] as i64;
                let count = "INSERT INTO statistics (counter, value) VALUES (?, ?)";
                self.db.execute(count, params![format!("{whose}_{name}"), value])?;
            }
        }
        property(&self.db, "schema", "2.5")?;
        property(&self.db, "schema_revision", "7")?;
        if !self.prefix.is_empty() {
            let root =
                "INSERT INTO properties (key, value) VALUES ('root_prefix', CAST(? AS TEXT))";
            self.db.execute(root, params![self.prefix])?;
        }
        self.db.execute_batch("COMMIT")?;
        let mut counters = self.own;
        counters.add(&self.below);
        let unsaid = image(&mut self.db)?;
        drop(self.db);
        if let Some(before) = before {
            let (digest, size, _) = packed(&unsaid, &before.said)?;
            if digest == before.digest {
                return Ok(Written { digest, size, counters, packed: None });
            }
        }
        let (digest, size, packed) = packed(&unsaid, now)?;
        Ok(Written { digest, size, counters, packed: Some(packed) })
    }
}

/// What a catalog is with what is said of its history: of the same two the same bytes.
fn packed(unsaid: &[u8], said: &Said) -> Result<(Digest, u64, Vec<u8>), CatalogError> {
    let mut db = Connection::open_in_memory()?;
    db.deserialize_read_exact(MAIN_DB, unsaid, unsaid.len(), false)?;
    db.execute_batch("BEGIN")?;
    property(&db, "revision", &said.revision.to_string())?;
    property(&db, "last_modified", &said.modified.to_string())?;
    property(&db, "previous_revision", &said.previous)?;
    if let Some(ttl) = said.ttl {
        property(&db, "TTL", &ttl.to_string())?;
    }
    db.execute_batch("COMMIT")?;
    let bytes = image(&mut db)?;
    let packed = crate::objects::pack(&bytes);
    let digest = Digest::compute(Algorithm::Sha1, Encoding::Zlib, &packed);
    Ok((digest, bytes.len() as u64, packed))
}

fn property(db: &Connection, key: &str, value: &str) -> Result<(), CatalogError> {
    db.execute("INSERT INTO properties (key, value) VALUES (?, ?)", params![key, value])?;
    Ok(())
}

/// A database as a file would have it.
pub fn image(db: &mut Connection) -> Result<Vec<u8>, CatalogError> {
    Ok(db.serialize(MAIN_DB)?.to_vec())
}

/// Where it would be stored.
pub fn key(digest: &Digest) -> String {
    hash::key(digest, Kind::Catalog)
}

/// The path of an entry, and what it is known by.
pub fn below(path: &[u8], name: &[u8]) -> (Vec<u8>, PathHash) {
    let path = [path, b"/", name].concat();
    let hash = hash::path_hash(&path);
    (path, hash)
}

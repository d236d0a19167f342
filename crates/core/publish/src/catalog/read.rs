//! Asks a catalog.
//!
//! It is held in memory, unpacked, and was verified before; even so SQLite is told to trust nothing
//! in it, and to change nothing.

use super::{CatalogError, Piece};
use crate::hash::{self, PathHash};
use crate::row::{Raw, Row};
use flate2::read::ZlibDecoder;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, Params, params};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{Algorithm, Digest, Encoding};

/// The largest that is held, unpacked.
pub const BYTES_MAX: u64 = 512 << 20;
/// The largest value in it.
const VALUE_MAX: i32 = 16 << 20;
/// Catalogs that are nested in one: more are refused.
const NESTED_MAX: usize = 100_000;
/// A piece is held whole to be judged.
pub const PIECE_MAX: u64 = 64 << 20;

pub struct Catalog {
    db: Mutex<Connection>,
    /// What a row is selected by, for what its schema has.
    columns: String,
    /// Of what it is the catalog; empty for all of the repository.
    pub prefix: Vec<u8>,
    /// Bytes that it takes.
    pub size: u64,
    nested: Nested,
}

/// The catalogs that go on below one: path, digest, and bytes unpacked.
pub type Nested = BTreeMap<Vec<u8>, (Digest, Option<u64>)>;

impl Catalog {
    /// Unpacks what has the digest that was looked for; `size` is what was said of it.
    pub fn unpack(packed: &[u8], size: Option<u64>) -> Result<Self, CatalogError> {
        Self::open(&unpacked(packed, size)?)
    }

    /// Of an unpacked one.
    pub fn open(bytes: &[u8]) -> Result<Self, CatalogError> {
        let mut db = Connection::open_in_memory()?;
        db.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_MAX)?;
        db.deserialize_read_exact(MAIN_DB, bytes, bytes.len(), true)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
        db.execute_batch("PRAGMA cell_size_check = ON")?;
        for table in ["catalog", "chunks", "nested_catalogs", "properties"] {
            let is = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?";
            if db.query_row(is, [table], |row| row.get::<_, i64>(0))? != 1 {
                return Err(CatalogError::Table(table));
            }
        }
        let schema = property(&db, "schema")?.unwrap_or_default();
        if !["2.4", "2.5"].contains(&schema.as_str()) {
            return Err(CatalogError::Schema(schema.chars().take(20).collect()));
        }
        let has = |column: &str| {
            let has = "SELECT count(*) FROM pragma_table_info('catalog') WHERE name = ?";
            db.query_row(has, [column], |row| row.get::<_, i64>(0)).map(|count| count > 0)
        };
        // Older schemas do not have them.
        let nanos = if has("mtimens")? { "mtimens" } else { "NULL" };
        let xattr = if has("xattr")? { "xattr" } else { "NULL" };
        let columns = format!(
            "SELECT md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, \
             {nanos}, flags, name, symlink, uid, gid, {xattr} FROM catalog"
        );
        let prefix = bytes_of(&db, "root_prefix")?.unwrap_or_default();
        let nested = nested(&db)?;
        let is_below = |path: &Vec<u8>| {
            path.strip_prefix(&prefix[..]).is_some_and(|rest| rest.len() > 1 && rest[0] == b'/')
        };
        if !nested.keys().all(is_below) {
            return Err(CatalogError::Content("a catalog that is nested in it is not below it"));
        }
        Ok(Self { db: Mutex::new(db), columns, prefix, size: bytes.len() as u64, nested })
    }

    /// What is known by the hash of its path.
    pub fn row(&self, path: PathHash) -> Result<Option<Row>, CatalogError> {
        let one = "md5path_1 = ? AND md5path_2 = ?";
        Ok(self.rows(one, params![path.0, path.1])?.pop())
    }

    /// Those whose hash begins so, at most a few.
    pub fn rows_between(&self, low: i64, high: i64) -> Result<Vec<Row>, CatalogError> {
        self.rows("md5path_1 BETWEEN ? AND ? LIMIT 8", params![low, high])
    }

    /// What is listed in a directory, by name.
    pub fn children(
        &self,
        parent: PathHash,
        after: &[u8],
        limit: u32,
    ) -> Result<Vec<Row>, CatalogError> {
        let some = "parent_1 = ? AND parent_2 = ? AND flags & 0x8000 = 0 \
                    AND name > CAST(? AS TEXT) ORDER BY name LIMIT ?";
        self.rows(some, params![parent.0, parent.1, after, limit])
    }

    /// The first of those that are one file: what all of them are known by.
    pub fn first_of_group(&self, row: &Row) -> Result<PathHash, CatalogError> {
        let first = "SELECT md5path_1, md5path_2 FROM catalog WHERE parent_1 = ? AND parent_2 = ? \
                     AND hardlinks = ? ORDER BY name LIMIT 1";
        let key = params![row.parent.0, row.parent.1, row.raw().hardlinks];
        let found = self.lock().query_row(first, key, |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(found.optional()?.unwrap_or(row.path))
    }

    /// The pieces of a file that end beyond an offset.
    pub fn pieces(&self, of: &Row, offset: u64, limit: u32) -> Result<Vec<Piece>, CatalogError> {
        let db = self.lock();
        let mut some = db.prepare(
            "SELECT offset, size, hash FROM chunks WHERE md5path_1 = ? AND md5path_2 = ? \
             AND offset + size > ? ORDER BY offset LIMIT ?",
        )?;
        let mut rows = some.query(params![of.path.0, of.path.1, offset as i64, limit])?;
        let mut pieces: Vec<Piece> = Vec::new();
        while let Some(row) = rows.next()? {
            let piece = piece((row.get(0)?, row.get(1)?, row.get(2)?), of.hashed)?;
            let is_next =
                pieces.last().is_none_or(|last| last.offset + last.length == piece.offset);
            if !is_next || piece.offset + piece.length > of.size {
                return Err(CatalogError::Content("the pieces of a file leave a gap, or overlap"));
            }
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// The catalog that goes on at a path.
    pub fn nested(&self, path: &[u8]) -> Option<(Vec<u8>, Digest, Option<u64>)> {
        let (digest, size) = self.nested.get(path)?;
        Some((path.to_vec(), *digest, *size))
    }

    /// All that are nested in it.
    pub fn nested_all(&self) -> impl Iterator<Item = (&Vec<u8>, &Digest, &Option<u64>)> {
        self.nested.iter().map(|(path, (digest, size))| (path, digest, size))
    }

    pub fn property(&self, key: &str) -> Result<Option<String>, CatalogError> {
        property(&self.lock(), key)
    }

    /// What it counted.
    pub fn counter(&self, name: &str) -> Result<Option<u64>, CatalogError> {
        let one = "SELECT value FROM statistics WHERE counter = ?";
        let found = self.lock().query_row(one, [name], |row| row.get::<_, i64>(0)).optional()?;
        Ok(found.and_then(|value| u64::try_from(value).ok()))
    }

    fn rows(&self, which: &str, of: impl Params) -> Result<Vec<Row>, CatalogError> {
        let db = self.lock();
        let mut some = db.prepare(&format!("{} WHERE {which}", self.columns))?;
        let mut found = some.query(of)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            let raw = Raw {
                path: (row.get(0)?, row.get(1)?),
                parent: (row.get(2)?, row.get(3)?),
                hardlinks: row.get(4)?,
                hash: row.get(5)?,
                size: row.get(6)?,
                mode: row.get(7)?,
                mtime: row.get(8)?,
                mtimens: row.get(9)?,
                flags: row.get(10)?,
                name: bytes(row.get_ref(11)?),
                symlink: bytes(row.get_ref(12)?),
                uid: row.get(13)?,
                gid: row.get(14)?,
                xattr: row.get(15)?,
            };
            rows.push(Row::try_from(raw)?);
        }
        Ok(rows)
    }

    /// Held for a question, never across an await.
    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Nothing panics while it is held.
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a database.
pub fn unpacked(packed: &[u8], size: Option<u64>) -> Result<Vec<u8>, CatalogError> {
    let most = size.unwrap_or(BYTES_MAX).min(BYTES_MAX);
    let mut bytes = Vec::new();
    let mut stream = ZlibDecoder::new(packed).take(most + 1);
    let length = stream.read_to_end(&mut bytes).map_err(|_| CatalogError::Packed)? as u64;
    match length <= most && size.is_none_or(|size| size == length) {
        true => Ok(bytes),
        false => Err(CatalogError::Packed),
    }
}

/// Of what SQLite has; the algorithm and the encoding are the file's.
fn piece(
    (offset, size, hash): (i64, i64, Vec<u8>),
    (algorithm, encoding): (Algorithm, Encoding),
) -> Result<Piece, CatalogError> {
    let wrong = || CatalogError::Content("a piece of a file cannot be");
    let number = |value: i64| u64::try_from(value).map_err(|_| wrong());
    let digest = Digest::new(algorithm, encoding, &hash).ok_or_else(wrong)?;
    let (offset, length) = (number(offset)?, number(size)?);
    if length == 0 || length > PIECE_MAX || offset.checked_add(length).is_none() {
        return Err(wrong());
    }
    Ok(Piece { offset, length, digest })
}

fn nested(db: &Connection) -> Result<Nested, CatalogError> {
    let has = "SELECT count(*) FROM pragma_table_info('nested_catalogs') WHERE name = 'size'";
    let has_size = db.query_row(has, [], |row| row.get::<_, i64>(0))? > 0;
    let size = if has_size { "size" } else { "NULL" };
    let mut all = db.prepare(&format!("SELECT path, sha1, {size} FROM nested_catalogs"))?;
    let mut rows = all.query([])?;
    let mut nested = Nested::new();
    while let Some(row) = rows.next()? {
        let wrong = || CatalogError::Content("a nested catalog has no digest");
        let digest = hash::parse(&row.get::<_, String>(1)?).ok_or_else(wrong)?;
        let size = row.get::<_, Option<i64>>(2)?.and_then(|size| u64::try_from(size).ok());
        nested.insert(bytes(row.get_ref(0)?), (digest, size.filter(|&size| size > 0)));
        if nested.len() > NESTED_MAX {
            return Err(CatalogError::Content("too many catalogs are nested in it"));
        }
    }
    Ok(nested)
}

fn property(db: &Connection, key: &str) -> Result<Option<String>, CatalogError> {
    Ok(bytes_of(db, key)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn bytes_of(db: &Connection, key: &str) -> Result<Option<Vec<u8>>, CatalogError> {
    let one = "SELECT value FROM properties WHERE key = ?";
    Ok(db.query_row(one, [key], |row| Ok(bytes(row.get_ref(0)?))).optional()?)
}

/// Of text, which need not be UTF-8.
fn bytes(value: ValueRef<'_>) -> Vec<u8> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        ValueRef::Integer(number) => number.to_string().into_bytes(),
        ValueRef::Real(number) => number.to_string().into_bytes(),
        ValueRef::Null => Vec::new(),
    }
}

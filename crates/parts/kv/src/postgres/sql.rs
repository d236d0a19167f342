//! What is said to the database: two tables, and a statement for each thing asked of them.
//!
//! `pairs` holds the pairs, `store` one row: the format, the owner's epoch and lease, and the
//! version of the newest group. Keys are `bytea`, which PostgreSQL compares byte by byte, whatever
//! the database's collation.

/// The layout of both tables.
pub const FORMAT_KNOWN: i32 = 1;

/// Said once on each connection. Every statement means the primary key's index, also when the
/// tables are so small, or so little known to the planner, that it would rather read all of them;
/// a database that answers before its disk has it is not believed.
pub const CONNECTION: &str = "
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
    SET plan_cache_mode = force_generic_plan; SET jit = off;
    SET statement_timeout = '25s';
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// Statements that are prepared on each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Keys → pairs that are there.
    Get,
    /// Start, end, limit → pairs.
    Scan,
    ScanReverse,
    /// Epoch, version before, version, keys and values to put, keys to delete, seconds of lease →
    /// how many owners it found: one, or none and nothing was done.
    Apply,
    /// → epoch, version, holder.
    Look,
    /// Epoch, seconds of lease → how many owners it found, and the version. As a commit it is
    /// durable, and all before it.
    Renew,
    /// Epoch → how many owners it found. Whatever else that epoch still sends is refused.
    Release,
}

impl Ask {
    pub const ALL: [Self; 7] = [
        Self::Get,
        Self::Scan,
        Self::ScanReverse,
        Self::Apply,
        Self::Look,
        Self::Renew,
        Self::Release,
    ];

    pub fn is_write(self) -> bool {
        matches!(self, Self::Apply | Self::Renew | Self::Release)
    }

    /// The statement, on the tables of a schema.
    pub fn text(self, schema: &str) -> String {
        let text = match self {
            Self::Get => "SELECT key, value FROM @.pairs WHERE key = ANY($1::bytea[])",
            Self::Scan => {
                "SELECT key, value FROM @.pairs WHERE key >= $1 AND key < $2
                 ORDER BY key LIMIT $3"
            }
            Self::ScanReverse => {
                "SELECT key, value FROM @.pairs WHERE key >= $1 AND key < $2
                 ORDER BY key DESC LIMIT $3"
            }
            Self::Apply => {
                "WITH owner AS (
                     UPDATE @.store SET version = $3,
                         expires = clock_timestamp() + $7::float8 * interval '1 second'
                     WHERE epoch = $1 AND version = $2 RETURNING epoch),
                 gone AS (
                     DELETE FROM @.pairs
                     WHERE key = ANY($6::bytea[]) AND EXISTS (SELECT FROM owner)),
                 there AS (
                     INSERT INTO @.pairs (key, value)
                     SELECT * FROM unnest($4::bytea[], $5::bytea[])
                     WHERE EXISTS (SELECT FROM owner)
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value)
                 SELECT count(*) FROM owner"
            }
            Self::Look => "SELECT epoch, version, holder FROM @.store",
            Self::Renew => {
                "WITH owner AS (
                     UPDATE @.store
                     SET expires = clock_timestamp() + $2::float8 * interval '1 second'
                     WHERE epoch = $1 RETURNING version)
                 SELECT count(*), max(version) FROM owner"
            }
            Self::Release => {
                "WITH owner AS (
                     UPDATE @.store SET epoch = epoch + 1, expires = '-infinity'
                     WHERE epoch = $1 RETURNING epoch)
                 SELECT count(*) FROM owner"
            }
        };
        on(text, schema)
    }
}

/// Makes the schema. Not needed where an administrator made it, and then perhaps not allowed.
pub fn make_schema(schema: &str) -> String {
    on("CREATE SCHEMA @", schema)
}

/// Makes both tables.
pub fn make(schema: &str) -> String {
    let text = "
        CREATE TABLE @.pairs (key bytea PRIMARY KEY, value bytea NOT NULL);
        CREATE TABLE @.store (
            one boolean PRIMARY KEY DEFAULT true CHECK (one),
            format int NOT NULL, epoch bigint NOT NULL, version bigint NOT NULL,
            owner text NOT NULL, holder text NOT NULL, expires timestamptz NOT NULL);
        INSERT INTO @.store (format, epoch, version, owner, holder, expires)
            VALUES (@format, 0, 0, '', '', '-infinity')";
    on(&text.replace("@format", &FORMAT_KNOWN.to_string()), schema)
}

/// → is there the schema, is there a store in it?
pub fn is_made(schema: &str) -> String {
    let text = "SELECT to_regnamespace('@') IS NOT NULL, to_regclass('@.store') IS NOT NULL";
    on(text, schema)
}

pub fn format(schema: &str) -> String {
    on("SELECT format FROM @.store", schema)
}

/// Key → value.
pub fn value(schema: &str) -> String {
    on("SELECT value FROM @.pairs WHERE key = $1", schema)
}

/// → version. The first statement of a snapshot.
pub fn version(schema: &str) -> String {
    on("SELECT version FROM @.store", schema)
}

/// One state for as long as the transaction lasts.
pub const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Owner, holder, seconds of lease, versions to move on → epoch, version; nothing if another
/// owner's lease is alive.
pub fn take(schema: &str) -> String {
    let text = "
        UPDATE @.store SET epoch = epoch + 1, version = version + $4, owner = $1, holder = $2,
            expires = clock_timestamp() + $3::float8 * interval '1 second'
        WHERE owner = $1 OR expires < clock_timestamp()
        RETURNING epoch, version";
    on(text, schema)
}

/// → holder, seconds that its lease still lasts.
pub fn holder(schema: &str) -> String {
    let text = "SELECT holder, extract(epoch FROM expires - clock_timestamp())::float8
                FROM @.store";
    on(text, schema)
}

pub fn remove(schema: &str) -> String {
    on("DROP SCHEMA IF EXISTS @ CASCADE", schema)
}

/// One opens at a time: two that make the same schema at once would only trip over each other.
pub const OPEN_LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext($1))";

fn on(text: &str, schema: &str) -> String {
    text.replace("@.", &format!("\"{schema}\".")).replace('@', &format!("\"{schema}\""))
}

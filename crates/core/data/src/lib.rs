//! The chunk service of an OSS.

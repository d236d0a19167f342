//! Ways, streams and uploads, over files in memory.

mod paths;
mod streams;
mod uploads;

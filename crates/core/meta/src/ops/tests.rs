//! What POSIX asks of each operation, by subject; and all of them against a tree too simple to be
//! wrong.

mod access_lists;
mod attributes;
mod bytes;
mod deleted;
mod large;
mod layouts;
mod model;
mod names;
mod ranges;
mod renames;
mod says;
mod told;
mod trust;
mod uploads;
mod xattrs;

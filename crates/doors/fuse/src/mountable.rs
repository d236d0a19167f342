//! Files that a kernel can be given: it caches what it is told of them, and its requests outlive
//! this process.

use tieline_files::{CoherentCache, Resume};

/// See the module.
pub trait Mountable: CoherentCache + Resume {}

impl<T: CoherentCache + Resume + ?Sized> Mountable for T {}

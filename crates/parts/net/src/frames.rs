//! Frames over a stream, bulk beside them.

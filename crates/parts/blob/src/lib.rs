//! Chunk stores: a directory, memory, and a faulty wrapper.

//! Benchmarks: every figure a ratio to a reference in the same run.

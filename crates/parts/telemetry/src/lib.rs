//! Metric names, span fields and log set-up.

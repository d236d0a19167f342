//! Ordered transactions over memory or an embedded engine.

//! Metric names in one table, and how logs are set up.
//!
//! * [`metrics`]: every metric with its unit, labels and meaning; [`metrics::render`] gives
//!   Prometheus' text.
//! * [`log`]: readable lines for people, JSON on request.
//! * [`health`]: live, ready, degraded with a reason; what `/health` answers.

pub mod health;
pub mod log;
pub mod metrics;

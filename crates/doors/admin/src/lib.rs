//! /metrics and /health over HTTP.

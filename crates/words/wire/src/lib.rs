//! Messages and frames of the Tieline protocol.

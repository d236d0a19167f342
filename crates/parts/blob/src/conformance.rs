//! What every backend must do, as one suite.

//! What every engine must do, as one suite.

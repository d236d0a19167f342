//! Records on disk: keys, values, object headers, the federation map.

//! Who is at the other end: mechanisms, and the signature of the federation map.

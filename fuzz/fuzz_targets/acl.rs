//! libFuzzer feeds `acl` (crates/checks/decoders).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tieline_decoders::acl::feed(bytes));

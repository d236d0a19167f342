//! libFuzzer feeds `s3` (crates/checks/decoders).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tieline_decoders::s3::feed(bytes));

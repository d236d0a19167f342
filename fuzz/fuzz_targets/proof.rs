//! libFuzzer feeds `proof` (crates/checks/decoders).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tieline_decoders::proof::feed(bytes));

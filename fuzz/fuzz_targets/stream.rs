//! libFuzzer feeds `stream` (crates/checks/decoders).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tieline_decoders::stream::feed(bytes));

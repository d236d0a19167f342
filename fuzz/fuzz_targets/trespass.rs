//! libFuzzer feeds `trespass` (crates/checks/decoders).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tieline_decoders::trespass::feed(bytes));

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_vhost::check_ring(bytes));

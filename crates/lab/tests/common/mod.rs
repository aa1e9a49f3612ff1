//! What tests of loads share.

/// A device that takes one command after another, each for the same time.
pub const SERVER: &str = r#"
name = "server"
capacity_bytes = 1_073_741_824
interface = { kind = "pcie", command_us = 10, bandwidth_mb_s = 100_000, bit_error_rate = 0 }
[media.dram]
service_us = 1
dram_mb_s = 100_000
save_mb_s = 100
restore_mb_s = 100
backup_cycles = 100_000
energy = { full_j = 100, save_w = 5, charge_w = 0 }
"#;

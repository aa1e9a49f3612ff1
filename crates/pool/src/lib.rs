pub mod spec;
pub mod status;

//! Numbers of an attachment, with the defaults of its kind.

use super::{InterfaceKind, InterfaceSpec};

/// An attachment with every number known. The defaults are assumptions: line rate less coding and
/// framing for bandwidth, the bus specification's limit for queue depth and bit error rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParams {
    /// Payload bandwidth of the link, in 10^6 bytes per second.
    pub bandwidth_mb_s: f64,
    /// Time one command occupies the link besides its data, in microseconds.
    pub command_us: f64,
    /// Commands the device accepts at once.
    pub queue_depth: u32,
    /// Components between host memory and device controller.
    pub hops: u32,
    /// Latency of one hop, there and back, in microseconds.
    pub hop_us: f64,
    /// Commands per second the host bus adapter passes; 0 means no cap.
    pub hba_iops_cap: f64,
    /// Probability that one bit is received wrong.
    pub bit_error_rate: f64,
    /// Cost of a retry besides sending again, in microseconds.
    pub retry_us: f64,
}

impl InterfaceKind {
    /// The kind's defaults.
    #[must_use]
    pub fn defaults(self) -> LinkParams {
        let (bandwidth_mb_s, command_us, queue_depth, hops, hop_us) = match self {
            InterfaceKind::Sata2 => (275.0, 5.0, 32, 2, 5.0),
            InterfaceKind::Sata6 => (550.0, 3.0, 32, 2, 5.0),
            InterfaceKind::Sas6 => (570.0, 3.0, 254, 2, 5.0),
            InterfaceKind::Sas12 => (1150.0, 2.0, 254, 2, 5.0),
            InterfaceKind::Pcie => (200.0, 1.0, 256, 1, 2.0),
            InterfaceKind::Nvme => (3200.0, 0.5, 1024, 1, 2.0),
        };
        LinkParams {
            bandwidth_mb_s,
            command_us,
            queue_depth,
            hops,
            hop_us,
            hba_iops_cap: 0.0,
            bit_error_rate: 1e-12,
            retry_us: 100.0,
        }
    }
}

impl InterfaceSpec {
    /// This kind with nothing overridden.
    #[must_use]
    pub fn of(kind: InterfaceKind) -> Self {
        Self {
            kind,
            bandwidth_mb_s: None,
            command_us: None,
            queue_depth: None,
            hops: None,
            hop_us: None,
            hba_iops_cap: None,
            bit_error_rate: None,
            retry_us: None,
        }
    }

    /// Every number, the kind's default where none is given.
    #[must_use]
    pub fn resolve(&self) -> LinkParams {
        let d = self.kind.defaults();
        LinkParams {
            bandwidth_mb_s: self.bandwidth_mb_s.unwrap_or(d.bandwidth_mb_s),
            command_us: self.command_us.unwrap_or(d.command_us),
            queue_depth: self.queue_depth.unwrap_or(d.queue_depth),
            hops: self.hops.unwrap_or(d.hops),
            hop_us: self.hop_us.unwrap_or(d.hop_us),
            hba_iops_cap: self.hba_iops_cap.unwrap_or(d.hba_iops_cap),
            bit_error_rate: self.bit_error_rate.unwrap_or(d.bit_error_rate),
            retry_us: self.retry_us.unwrap_or(d.retry_us),
        }
    }
}

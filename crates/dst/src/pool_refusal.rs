//! Refusals of the product, for the proof: which devices its errors blame, and which they name.

use forebay_pool::{
    AdminError, CloseError, CommitError, ImportError, ImportErrorKind, Lacking, MapLoadError,
    PoolError, RecoveryError, ScrubError, SegmentError, VolumeError, Witness,
};

use crate::subject::{Cause, Refusal};

impl From<PoolError> for Refusal {
    fn from(error: PoolError) -> Self {
        let failed = error.device_errors().into_iter().map(|error| error.device.clone());
        let mut refusal =
            Refusal { message: error.to_string(), blamed: failed.collect(), ..Refusal::default() };
        match error {
            PoolError::Import(error) => {
                match error.kind {
                    ImportErrorKind::HalfMissing { .. } => refusal.cause = Cause::HalfMissing,
                    ImportErrorKind::Diverged { .. } => refusal.cause = Cause::Diverged,
                    _ => {}
                }
                refusal.add_import(error.kind);
            }
            PoolError::Volume(VolumeError::NoSpace { .. }) => refusal.cause = Cause::NoSpace,
            _ => {}
        }
        refusal
    }
}

macro_rules! refusals {
    ($($error:ty),*) => {
        $(impl From<$error> for Refusal {
            fn from(error: $error) -> Self {
                PoolError::from(error).into()
            }
        })*
    };
}
refusals!(AdminError, CloseError, CommitError, ImportError, ScrubError, VolumeError);

impl Refusal {
    fn add_import(&mut self, kind: ImportErrorKind) {
        use ImportErrorKind as Kind;
        match kind {
            Kind::NotFound { unreadable, searched } if unreadable.is_empty() => {
                self.named.extend(searched);
            }
            Kind::NotFound { .. } | Kind::HeldHere { .. } | Kind::Ambiguous | Kind::Destroyed => {}
            Kind::LabelsLost { devices } => self.named.extend(devices),
            Kind::FormatVersion { device, .. } | Kind::NotKept { device } => {
                self.named.push(device);
            }
            Kind::NoSuperblock(lacking) => self.add_lacking(lacking),
            Kind::NoConfiguration { holders, lacking, .. } => {
                self.named.extend(holders);
                self.add_lacking(lacking);
            }
            Kind::RootNotNewest { witness, missing, present } => {
                if let Witness::Device(device) = witness {
                    self.named.push(device);
                }
                if missing.is_empty() {
                    self.named.extend(present);
                }
                self.blamed.extend(missing);
            }
            Kind::HalfMissing { missing } | Kind::LogMissing { missing, .. } => {
                self.blamed.extend(missing);
            }
            Kind::Diverged { newest, others, .. } => {
                self.named.push(newest);
                self.named.extend(others);
            }
            Kind::TooFewDevices { missing, out_of_use: others, .. }
            | Kind::SourcesMissing { missing, behind: others, .. } => {
                self.blamed.extend(missing.into_iter().chain(others));
            }
            Kind::LogLoss(loss) => {
                if loss.missing.is_empty() && loss.places.is_empty() {
                    self.named.extend(loss.devices);
                }
                self.named.extend(loss.places.into_iter().map(|(device, _)| device));
                self.blamed.extend(loss.missing);
            }
            Kind::Log(_) | Kind::Layout(_) => {}
            Kind::Map { error, missing, behind } => {
                if let MapLoadError::Segment(error) = *error {
                    self.add_location(*error);
                }
                self.blamed.extend(missing.into_iter().chain(behind));
            }
            Kind::OwnedMeanwhile
            | Kind::InUseElsewhere { .. }
            | Kind::NotExportedElsewhere
            | Kind::TakenMeanwhile
            | Kind::Overtaken { .. } => {
                self.cause = Cause::OtherMachine;
            }
            Kind::Reserved { .. } => self.cause = Cause::UnknownReservation,
            Kind::Recovery { error, out_of_use, behind } => {
                match *error {
                    RecoveryError::Commit(CommitError::Segment(error)) => {
                        self.add_location(*error);
                    }
                    RecoveryError::LogChanged { devices } => self.named.extend(devices),
                    _ => {}
                }
                self.blamed.extend(out_of_use.into_iter().chain(behind));
            }
        }
    }

    fn add_lacking(&mut self, lacking: Lacking) {
        self.blamed.extend(lacking.missing.into_iter().chain(lacking.rootless));
    }

    /// Where a frame lies is no blame.
    fn add_location(&mut self, error: SegmentError) {
        if let SegmentError::Journal { location: Some(location), .. } = error {
            self.named.extend(location.device_names);
        }
    }
}

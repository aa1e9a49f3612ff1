//! Log of operations: one line of CSV for each request that a model of a device was given.

use crate::error::{ArgumentError, FileAction, LabError};
use crate::output_file::OutputFile;
use forebay_flash::{Completion, Request, RequestKind, Status};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The columns.
pub(crate) const HEADING: &str =
    "phase,kind,offset_bytes,len_bytes,fua,stream,submitted_ns,completed_ns,response_ns,status";

/// A file that operations are appended to, in the order of their submission.
pub(crate) struct OperationLog {
    out: BufWriter<OutputFile>,
    path: PathBuf,
    /// The number of the phase that runs.
    pub phase: usize,
}

impl OperationLog {
    /// Begins a new file at `path`. With `force`, one that is there is replaced at the end.
    pub(crate) fn create(path: &Path, force: bool) -> Result<Self, LabError> {
        let out = OutputFile::create(path, force).map_err(|cause| match cause.kind() {
            ErrorKind::AlreadyExists => {
                LabError::Arguments(ArgumentError::OperationsExist { file: path.to_owned() })
            }
            _ => LabError::File { action: FileAction::Write, path: path.to_owned(), cause },
        })?;
        let mut log =
            Self { out: BufWriter::with_capacity(1 << 20, out), path: path.to_owned(), phase: 0 };
        writeln!(log.out, "{HEADING}").map_err(|cause| log.failed(cause))?;
        Ok(log)
    }

    fn failed(&self, cause: std::io::Error) -> LabError {
        LabError::File { action: FileAction::Write, path: self.path.clone(), cause }
    }

    /// Notes a request. Instants are the model's own.
    pub(crate) fn note(
        &mut self,
        submitted_ns: u64,
        request: &Request<'_>,
        done: &Completion,
    ) -> Result<(), LabError> {
        let kind = match request.kind {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::Trim => "trim",
            RequestKind::SecureErase => "secure-erase",
        };
        let status = match done.status {
            Status::Done => "done",
            Status::Unreadable { .. } => "unreadable",
            Status::WornOut => "worn-out",
        };
        let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
        let (phase, fua, completed_ns) = (self.phase, u8::from(request.fua), done.at.0);
        let stream = request.stream;
        let response_ns = completed_ns - submitted_ns;
        writeln!(
            self.out,
            "{phase},{kind},{offset_bytes},{len_bytes},{fua},{stream},\
             {submitted_ns},{completed_ns},{response_ns},{status}"
        )
        .map_err(|cause| self.failed(cause))
    }

    /// Hands everything to the kernel, and gives the file its name.
    pub(crate) fn finish(self) -> Result<(), LabError> {
        let Self { out, path, .. } = self;
        let finished = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        finished.and_then(OutputFile::finish).map_err(|cause| LabError::File {
            action: FileAction::Write,
            path,
            cause,
        })
    }
}

//! Streams of the product: a snapshot that is sent and received in one pool.

use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind};
use forebay_pool::{LeftBy, Pool, ReceiveOptions, Receiver, SendOptions, TransferError};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::scenario::Copying;
use crate::subject::{Cause, Refusal};

/// How long an import may take to undo a stream that was interrupted.
const UNDONE_WITHIN: Nanos = Nanos::from_secs(60);
/// A stream that is kept may have come to its end, which is not seen from outside.
const FOUND_WHOLE_WITHIN: Nanos = Nanos::from_secs(10);
const LOOK_INTERVAL: Nanos = Nanos::from_millis(100);

impl From<TransferError> for Refusal {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Volume(error) => error.into(),
            TransferError::Commit(error) => error.into(),
            TransferError::Device(DeviceError { kind: ErrorKind::NoSpace, .. }) => {
                Self { cause: Cause::NoSpace, ..Self::new("there is no space for a stream") }
            }
            TransferError::Device(error) => error.into(),
            other => Self::new(other.to_string()),
        }
    }
}

/// Waits until what a crash left of streams is undone or found whole.
pub(crate) async fn streams_are_settled(pool: &Rc<Pool>) {
    let begun = rt::now();
    loop {
        let volumes = pool.volumes();
        let partly = || volumes.iter().filter(|volume| volume.is_receiving);
        let within = match partly().next() {
            None => return,
            Some(_) if partly().any(|volume| volume.resume_token.is_none()) => UNDONE_WITHIN,
            Some(_) => FOUND_WHOLE_WITHIN,
        };
        if rt::now().since(begun) >= within {
            return;
        }
        rt::sleep(LOOK_INTERVAL).await;
    }
}

/// Sends snapshot `name`, or what changed since `base`, and receives it as volume `copy`. True when
/// all of it came.
pub(crate) async fn copy(
    pool: &Rc<Pool>,
    (name, base): (&str, Option<&str>),
    copy: &str,
    how: &Copying,
) -> Result<bool, Refusal> {
    let full_name = format!("{}/{copy}", pool.name());
    let partly = pool.volumes().into_iter().find(|v| v.name == full_name && v.is_receiving);
    let token = partly.and_then(|volume| volume.resume_token);
    let options = SendOptions {
        snapshot: Some(name.to_owned()),
        base: base.map(str::to_owned),
        token,
        is_as_stored: how.is_as_stored,
    };
    let with = ReceiveOptions { roll_back: true, is_resumable: how.is_resumable };
    let mut receiver = pool.receive(copy, with);
    match feed(pool, &options, &mut receiver, how.cut).await {
        Ok(true) => Ok(true),
        Ok(false) => match receiver.give_up().await {
            LeftBy::Part => Err(Refusal::new(format!("{full_name} keeps a part of a stream"))),
            LeftBy::Nothing | LeftBy::Token(_) => Ok(false),
        },
        Err(error) => {
            receiver.give_up().await;
            Err(error.into())
        }
    }
}

async fn feed(
    pool: &Rc<Pool>,
    options: &SendOptions,
    receiver: &mut Receiver,
    cut: Option<u64>,
) -> Result<bool, TransferError> {
    let mut sender = pool.send(options)?;
    let mut parts = 0;
    let outcome = loop {
        if cut == Some(parts) {
            break Ok(false);
        }
        match sender.next().await {
            Ok(None) => break receiver.finish().await.map(|_| true),
            Ok(Some(part)) => {
                if let Err(error) = receiver.feed(&part).await {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
        parts += 1;
    };
    sender.end().await;
    outcome
}

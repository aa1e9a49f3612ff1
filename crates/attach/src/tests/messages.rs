//! Bytes that Linux 6.1 and nbd-client 3.24 exchanged, as strace shows them, on a little-endian
//! machine.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::MessageError;
use crate::nbd::{self, NewDevice};
use crate::netlink::{Answer, Attributes, Body, answers};

/// The number of the family in the recording.
const FAMILY: u16 = 0x20;

/// Bytes from hexadecimal digits.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// What the controller answers to a question for the family `nbd`.
fn family() -> Vec<u8> {
    hex("b4000000 1000 0000 01000000 d3000000 01020000 08000200 6e626400 06000100 20000000
         08000300 01000000 08000400 00000000 08000500 0a000000 54000600 14000100 08000100
         01000000 08000200 0a000000 14000200 08000100 02000000 08000200 0a000000 14000300
         08000100 03000000 08000200 0a000000 14000400 08000100 05000000 08000200 0a000000
         24000700 20000100 08000200 09000000 11000100 6e62645f6d635f67726f757000 000000")
}

/// An acknowledgment of the request with the number 1.
fn acknowledgment() -> Vec<u8> {
    hex("24000000 0200 0001 01000000 d3000000 00000000 1c000000 1000 0500 01000000 00000000")
}

fn data(answer: Answer<'_>) -> Attributes<'_> {
    match answer.body {
        Body::Data(data) => data,
        other => panic!("{other:?} is no data"),
    }
}

/// Attributes of a request, behind its two headers.
fn attributes(request: &[u8]) -> Attributes<'_> {
    // A request to a family reads like data of one.
    data(answers(request).unwrap()[0])
}

#[test]
fn question_for_the_family_is_as_nbd_client_asks() {
    // But for the version of the controller's family, which is 1 there, and the port.
    let theirs = "1c000000 1000 0500 07000000 00000000 03 02 0000 08000200 6e626400";
    assert_eq!(nbd::get_family(7), hex(theirs));
}

#[test]
fn number_of_the_family_is_in_the_answer() {
    let bytes = family();
    let all = answers(&bytes).unwrap();
    assert_eq!((all.len(), all[0].sequence), (1, 1));
    assert_eq!(data(all[0]).u16(nbd::FAMILY_ID, "id"), Ok(FAMILY));
    assert_eq!(data(all[0]).u32(99, "it"), Err(MessageError::Missing { what: "it" }));
    // Two messages in one datagram.
    let both = [family(), acknowledgment()].concat();
    let bodies: Vec<bool> =
        answers(&both).unwrap().iter().map(|a| a.body == Body::Acknowledged).collect();
    assert_eq!(bodies, [false, true]);
}

#[test]
fn new_device_has_the_attributes_that_nbd_client_sends() {
    let sockets: [OwnedFd; 2] = [(); 2].map(|()| forebay_rt::sys::event_fd().unwrap().into());
    let device = NewDevice {
        size_bytes: 32 << 20,
        block_bytes: 512,
        timeout_secs: 3,
        dead_timeout_secs: 60,
        server_flags: 0x0d6d,
        sockets: &sockets,
        identifier: "forebay:1:2:2:p/w",
    };
    let ours = nbd::connect(FAMILY, 2, &device);
    let theirs = hex("68000000 2000 0500 02000000 00000000 01000000 08000100 05000000 0c000200
         0000000200000000 0c000300 0002000000000000 0c000500 6d0d000000000000 0c000400
         0300000000000000 1c000780 0c000180 08000100 03000000 0c000180 08000100 04000000");
    let (ours, theirs) = (attributes(&ours), attributes(&theirs));
    // Size, block size, timeout and flags.
    for kind in [2, 3, 4, 5] {
        assert_eq!(ours.get(kind, "ours"), theirs.get(kind, "theirs"), "attribute {kind}");
    }
    let mut expected = theirs.get(7, "sockets").unwrap().to_vec();
    for (at, socket) in sockets.iter().enumerate() {
        let start = 8 + 12 * at;
        expected[start..start + 4].copy_from_slice(&socket.as_raw_fd().to_ne_bytes());
    }
    assert_eq!(ours.get(7, "sockets").unwrap(), expected);
    // Beyond nbd-client: the wait for a server, and whose device it is. The kernel chooses the
    // number.
    assert_eq!(ours.get(8, "wait").unwrap(), 60u64.to_ne_bytes());
    assert_eq!(ours.get(10, "identifier").unwrap(), b"forebay:1:2:2:p/w\0");
    assert!(ours.get(1, "number").is_err());
}

#[test]
fn number_of_a_new_device_is_in_the_answer() {
    let bytes = hex("1c000000 2000 0000 02000000 d3000000 01010000 08000100 05000000");
    assert_eq!(data(answers(&bytes).unwrap()[0]).u32(nbd::INDEX, "number"), Ok(5));
}

#[test]
fn device_is_taken_away_as_by_nbd_client() {
    let theirs = hex("1c000000 2000 0500 03000000 00000000 02 01 0000 08000100 05000000");
    assert_eq!(nbd::disconnect(FAMILY, 3, 5), theirs);
}

#[test]
fn change_of_a_device_names_it_twice() {
    let resize = nbd::resize(FAMILY, 4, 5, "forebay:1:2:2:p/w", 4096);
    let all = attributes(&resize);
    assert_eq!(all.u32(1, "number"), Ok(5));
    assert_eq!(all.get(10, "identifier").unwrap(), b"forebay:1:2:2:p/w\0");
    assert_eq!(all.get(2, "size").unwrap(), 4096u64.to_ne_bytes());
    assert!(all.get(7, "sockets").is_err(), "the kernel waits for requests in flight");
    let reconnect = nbd::reconnect(FAMILY, 4, 5, "forebay:1:2:2:p/w", &[]);
    let all = attributes(&reconnect);
    assert!(all.get(2, "size").is_err() && all.get(7, "sockets").is_ok());
}

#[test]
fn refusal_has_the_number_of_its_error() {
    let mut refused = acknowledgment();
    refused[16..20].copy_from_slice(&(-1i32).to_ne_bytes());
    assert_eq!(answers(&refused).unwrap()[0].body, Body::Failed(1));
    refused[16..20].copy_from_slice(&i32::MIN.to_ne_bytes());
    assert_eq!(answers(&refused).unwrap()[0].body, Body::Failed(i32::MAX));
}

#[test]
fn broken_messages_are_errors_and_no_panics() {
    let whole = [family(), acknowledgment()].concat();
    for len in 0..whole.len() {
        let _ = answers(&whole[..len]).map(|all| {
            let of = |answer: &Answer<'_>| match answer.body {
                Body::Data(data) => data.u16(nbd::FAMILY_ID, "id").is_ok(),
                _ => false,
            };
            all.iter().any(of)
        });
    }
    for at in 0..whole.len() {
        for value in [0, 1, 3, 0x7f, 0xff] {
            let mut broken = whole.clone();
            broken[at] = value;
            let Ok(all) = answers(&broken) else { continue };
            for answer in all {
                if let Body::Data(data) = answer.body {
                    let _ = data.u32(99, "nothing");
                }
            }
        }
    }
    let expected = MessageError::TooShort { what: "a message header", expected: 16, found: 3 };
    assert_eq!(answers(&[1, 2, 3]), Err(expected));
    assert_eq!(answers(&[]), Ok(Vec::new()));
}

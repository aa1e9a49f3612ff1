use proptest::prelude::*;

use crate::message::*;
use crate::uri::{Address, Uri, UriFlaw};
use crate::wire::*;

#[test]
fn messages_have_the_bytes_of_the_protocol() {
    let request = Request {
        flags: 1,
        command: command::WRITE,
        cookie: 0x0102_0304_0506_0708,
        offset_bytes: 0x1000,
        len_bytes: 0x200,
    };
    let expected = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0,
        0, 2, 0,
    ];
    assert_eq!(request.encode(), expected);
    let greeting = Greeting { flags: 3 }.encode();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(
        SimpleReply { error: 5, cookie: 9 }.encode()[..8],
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5]
    );
}

#[test]
fn unknown_errnos_become_eio_on_the_wire() {
    assert_eq!(errno_on_wire(28), errno::ENOSPC);
    assert_eq!(errno_on_wire(108), errno::ESHUTDOWN);
    assert_eq!(errno_on_wire(-1), errno::EIO);
    assert_eq!(errno_on_wire(0), errno::EIO);
    assert_eq!(errno_on_wire(121), errno::EIO);
}

#[test]
fn end_of_a_range_never_wraps() {
    let request = |offset_bytes, len_bytes| Request {
        flags: 0,
        command: 0,
        cookie: 0,
        offset_bytes,
        len_bytes,
    };
    assert_eq!(request(u64::MAX, 1).end_bytes(), None);
    assert_eq!(request(u64::MAX - 1, 1).end_bytes(), Some(u64::MAX));
    assert_eq!(request(1 << 40, u32::MAX).end_bytes(), Some((1 << 40) + 0xffff_ffff));
}

#[test]
fn long_text_is_cut_at_a_character_boundary() {
    assert_eq!(bounded("häuser", 2), "h");
    assert_eq!(bounded("häuser", 3), "hä");
    let mut out = Vec::new();
    ErrorPayload { error: 5, text: &"x".repeat(10_000), offset_bytes: None }.encode(&mut out);
    assert_eq!(out.len(), 6 + MAX_ERROR_TEXT_BYTES);
}

#[test]
fn uris_are_parsed() {
    let uri = Uri::parse("nbd+unix:///tank/vol%201?socket=/run/f%2dbay.sock").unwrap();
    assert_eq!(uri.export, "tank/vol 1");
    assert_eq!(uri.address, Address::Unix("/run/f-bay.sock".into()));
    let uri = Uri::parse("nbd://[::1]:7/x").unwrap();
    assert_eq!(uri.address, Address::Tcp { host: "::1".into(), port: 7 });
    assert_eq!(uri.to_string(), "nbd://[::1]:7/x");
    let uri = Uri::parse("nbd://localhost").unwrap();
    assert_eq!(
        (uri.address, uri.export),
        (Address::Tcp { host: "localhost".into(), port: 10809 }, String::new())
    );
    for (bad, flaw) in [
        ("", UriFlaw::NoScheme),
        ("nbd", UriFlaw::NoScheme),
        ("nbd:///x", UriFlaw::NoHost),
        ("nbd+unix:///x", UriFlaw::NoSocket),
        ("nbd+unix://h/x?socket=/s", UriFlaw::HostBeforePath),
        ("http://x/y", UriFlaw::UnknownScheme),
        ("nbd://h:99999/x", UriFlaw::BadPort),
        ("nbd://h/%zz", UriFlaw::BadEscape),
        ("nbd://h/%4", UriFlaw::BadEscape),
        ("nbd://[::1/x", UriFlaw::NoClosingBracket),
        ("nbd+unix:///x?socket=", UriFlaw::BadSocket),
        ("nbd+unix:///x?socket=%4", UriFlaw::BadSocket),
    ] {
        assert_eq!(Uri::parse(bad).map_err(|e| e.flaw), Err(flaw), "{bad}");
    }
    assert_eq!(
        Uri::parse("http://x/y").unwrap_err().to_string(),
        "'http://x/y' is neither nbd:// nor nbds://, nor one of them with +unix; write for example \
         nbd+unix:///tank/vol?socket=/run/forebay.sock or nbd://127.0.0.1:10809/tank/vol"
    );
}

#[test]
fn wire_errors_name_the_message_and_the_flaw() {
    let truncated = Request::decode(&[0x25, 0x60, 0x95, 0x13, 0]).unwrap_err();
    let flaw = WireFlaw::Truncated { expected_bytes: 2, left_bytes: 1 };
    assert_eq!(truncated, WireError { message: "request", flaw });
    assert_eq!(truncated.to_string(), "request: 2 more bytes expected, 1 left");
    let magic = Request::decode(&[0; REQUEST_BYTES]).unwrap_err();
    assert_eq!(magic.flaw, WireFlaw::BadMagic { found: 0, expected: REQUEST_MAGIC.into() });
}

prop_compose! {
    fn any_request()(flags: u16, command: u16, cookie: u64, offset_bytes: u64, len_bytes: u32)
        -> Request { Request { flags, command, cookie, offset_bytes, len_bytes } }
}

fn round_trip(reply: &OptionReply<'_>) -> Result<(), TestCaseError> {
    let mut out = Vec::new();
    reply.encode(&mut out);
    prop_assert_eq!(&OptionReply::decode(reply.kind(), &out).unwrap(), reply);
    Ok(())
}

proptest! {
    #[test]
    fn fixed_messages_round_trip(r in any_request(), a: u16, b: u16, c: u32, d: u32, e: u64) {
        prop_assert_eq!(Request::decode(&r.encode()).unwrap(), r);
        let greeting = Greeting { flags: a };
        prop_assert_eq!(Greeting::decode(&greeting.encode()).unwrap(), greeting);
        let option = OptionHeader { option: c, len_bytes: d };
        prop_assert_eq!(OptionHeader::decode(&option.encode()).unwrap(), option);
        let answer = OptionReplyHeader { option: c, kind: d, len_bytes: c };
        prop_assert_eq!(OptionReplyHeader::decode(&answer.encode()).unwrap(), answer);
        let simple = SimpleReply { error: c, cookie: e };
        prop_assert_eq!(SimpleReply::decode(&simple.encode()).unwrap(), simple);
        let chunk = ChunkHeader { flags: a, kind: b, cookie: e, len_bytes: c };
        prop_assert_eq!(ChunkHeader::decode(&chunk.encode()).unwrap(), chunk);
    }

    #[test]
    fn variable_messages_round_trip(
        name in "\\PC{0,60}", words in "\\PC{0,60}",
        wanted in prop::collection::vec(any::<u16>(), 0..64),
        queries in prop::collection::vec("\\PC{0,20}", 0..64),
        extents in prop::collection::vec((1u32.., any::<u32>()), 1..50),
        size_bytes: u64, flags: u16, id: u32, error in 1u32.., offset: Option<u64>,
    ) {
        let mut out = Vec::new();
        let info = InfoRequest { name: &name, wanted };
        info.encode(&mut out);
        prop_assert_eq!(InfoRequest::decode(&out).unwrap(), info);
        out.clear();
        let queries = queries.iter().map(String::as_str).collect();
        let meta = MetaRequest { name: &name, queries };
        meta.encode(&mut out);
        prop_assert_eq!(MetaRequest::decode(&out).unwrap(), meta);
        out.clear();
        let extent = |&(len_bytes, flags): &(u32, u32)| Extent { len_bytes, flags };
        let extents = extents.iter().map(extent).collect();
        let status = StatusPayload { context: id, extents };
        status.encode(&mut out);
        prop_assert_eq!(StatusPayload::decode(&out).unwrap(), status);
        out.clear();
        let text = bounded(&words, MAX_ERROR_TEXT_BYTES);
        let payload = ErrorPayload { error, text, offset_bytes: offset };
        payload.encode(&mut out);
        prop_assert_eq!(ErrorPayload::decode(&out, offset.is_some()).unwrap(), payload);
        round_trip(&OptionReply::Ack)?;
        round_trip(&OptionReply::Server { name: &name, description: &words })?;
        round_trip(&OptionReply::Export { size_bytes, flags })?;
        round_trip(&OptionReply::Name(&name))?;
        round_trip(&OptionReply::Description(&words))?;
        let sizes = BlockSizes { min_bytes: id, preferred_bytes: error, max_bytes: 1 };
        round_trip(&OptionReply::BlockSize(sizes))?;
        round_trip(&OptionReply::MetaContext { id, name: &name })?;
        round_trip(&OptionReply::Error { kind: error | reply::ERROR_BIT, text })?;
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind: u32,
        small in 0u32..12,
    ) {
        let _ = Request::decode(&bytes);
        let _ = Greeting::decode(&bytes);
        let _ = OptionHeader::decode(&bytes);
        let _ = OptionReplyHeader::decode(&bytes);
        let _ = SimpleReply::decode(&bytes);
        let _ = ChunkHeader::decode(&bytes);
        let _ = InfoRequest::decode(&bytes);
        let _ = MetaRequest::decode(&bytes);
        let _ = StatusPayload::decode(&bytes);
        let _ = ErrorPayload::decode(&bytes, kind & 1 == 0);
        let _ = OptionReply::decode(kind, &bytes);
        let _ = OptionReply::decode(small, &bytes);
        let _ = Uri::parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn wrong_lengths_are_refused(name in "[a-z]{0,20}", claimed in 21u32..) {
        // The message claims a longer name than it has: an error, without such an allocation.
        let mut out = claimed.to_be_bytes().to_vec();
        out.extend_from_slice(name.as_bytes());
        prop_assert!(InfoRequest::decode(&out).is_err());
        prop_assert!(MetaRequest::decode(&out).is_err());
        prop_assert!(OptionReply::decode(reply::SERVER, &out).is_err());
    }
}

use proptest::prelude::*;

use crate::handshake::*;
use crate::message::*;
use crate::wire::*;

#[derive(Default)]
struct Table {
    opened: String,
}

impl Lookup for Table {
    fn list(&mut self) -> Vec<(String, String)> {
        vec![("vol".into(), "a volume".into()), ("other".into(), String::new())]
    }
    fn open(&mut self, name: &str) -> Result<ExportInfo, Refusal> {
        name.clone_into(&mut self.opened);
        match name {
            "vol" | "other" | "days" => Ok(ExportInfo {
                size_bytes: 1 << 30,
                flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_DF,
                sizes: BlockSizes { min_bytes: 512, preferred_bytes: 4096, max_bytes: 32 << 20 },
                description: "a volume".into(),
            }),
            "secret" => Err(Refusal::Denied),
            _ => Err(Refusal::Unknown),
        }
    }
    fn bitmaps(&mut self) -> Vec<String> {
        let days = if self.opened == "days" { 20 } else { 0 };
        (0..days).map(|day| format!("day{day}")).collect()
    }
}

pub(super) fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OptionHeader { option, len_bytes: data.len() as u32 }.encode().to_vec();
    out.extend_from_slice(data);
    out
}

pub(super) fn go(option: u32, name: &str) -> Vec<u8> {
    let mut data = Vec::new();
    InfoRequest { name, wanted: vec![info::NAME, info::DESCRIPTION, 77] }.encode(&mut data);
    option_bytes(option, &data)
}

pub(super) fn meta(option: u32, name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    MetaRequest { name, queries: queries.to_vec() }.encode(&mut data);
    option_bytes(option, &data)
}

/// The end of a handshake.
#[derive(Debug, PartialEq)]
enum End {
    Waiting,
    Agreed(Agreement),
    Aborted,
    Failed(HandshakeError),
}

/// Runs a handshake on `input`, which arrives in parts that end at `cuts`.
fn negotiate(input: &[u8], cuts: &[usize]) -> (End, Vec<u8>, usize) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(32, &mut out);
    let (mut start, mut arrived) = (0, 0);
    let mut table = Table::default();
    let mut cuts = cuts.iter().copied().chain([input.len()]);
    loop {
        match handshake.advance(&input[start..arrived], &mut table, &mut out) {
            Ok(Step::Need(len)) => {
                assert!(len > arrived - start, "the bytes have arrived already");
                assert!(len <= OPTION_HEADER_BYTES + MAX_OPTION_BYTES as usize);
                match cuts.find(|cut| *cut > arrived) {
                    Some(cut) => arrived = cut.min(input.len()),
                    None => return (End::Waiting, out, start),
                }
            }
            Ok(Step::More(n)) => start += n,
            Ok(Step::Transmit(n, agreement)) => return (End::Agreed(agreement), out, start + n),
            Ok(Step::Aborted(n)) => return (End::Aborted, out, start + n),
            Ok(Step::StartTls(_)) => panic!("this server has no TLS"),
            Err(e) => return (End::Failed(e), out, start),
        }
    }
}

/// The replies after the greeting, decoded: option, kind, data.
fn replies(out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut rest = &out[GREETING_BYTES..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let header = OptionReplyHeader::decode(rest).expect("a whole reply");
        let end = OPTION_REPLY_HEADER_BYTES + header.len_bytes as usize;
        all.push((header.option, header.kind, rest[OPTION_REPLY_HEADER_BYTES..end].to_vec()));
        OptionReply::decode(header.kind, &all.last().unwrap().2).expect("well-formed");
        rest = &rest[end..];
    }
    all
}

fn kinds(out: &[u8]) -> Vec<u32> {
    replies(out).into_iter().map(|(_, kind, _)| kind).collect()
}

fn client_flags() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

#[test]
fn go_sends_information_and_starts_transmission() {
    let mut input = client_flags();
    input.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    input.extend(meta(option::SET_META_CONTEXT, "vol", &["x:y", BASE_ALLOCATION]));
    input.extend(go(option::GO, "vol"));
    let used = input.len();
    input.extend([9; 5]); // the first bytes of a request are not consumed
    let (end, out, consumed) = negotiate(&input, &[]);
    let agreed =
        Agreement { name: "vol".into(), structured: true, contexts: vec![Context::Allocation] };
    assert_eq!((end, consumed), (End::Agreed(agreed), used));
    let all = replies(&out);
    let decoded: Vec<_> = all.iter().map(|(_, k, d)| OptionReply::decode(*k, d).unwrap()).collect();
    let flags = transmission_flag::HAS_FLAGS | transmission_flag::SEND_DF;
    assert_eq!(
        decoded,
        [
            OptionReply::Ack,
            OptionReply::MetaContext { id: 1, name: BASE_ALLOCATION },
            OptionReply::Ack,
            OptionReply::Export { size_bytes: 1 << 30, flags },
            OptionReply::Name("vol"),
            OptionReply::Description("a volume"),
            OptionReply::BlockSize(BlockSizes {
                min_bytes: 512,
                preferred_bytes: 4096,
                max_bytes: 32 << 20
            }),
            OptionReply::Ack,
        ]
    );
}

#[test]
fn bitmaps_are_listed_and_chosen_by_their_full_names() {
    let names = |input: &[u8]| -> Vec<(u32, String)> {
        let (_, out, _) = negotiate(input, &[]);
        let all = replies(&out).into_iter();
        all.filter_map(|(_, kind, data)| match OptionReply::decode(kind, &data) {
            Ok(OptionReply::MetaContext { id, name }) => Some((id, name.to_owned())),
            _ => None,
        })
        .collect()
    };
    let ask = |option, queries: &[&str]| {
        let mut input = client_flags();
        input.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
        input.extend(meta(option, "days", queries));
        input
    };
    let list = option::LIST_META_CONTEXT;
    assert_eq!(names(&ask(list, &[])).len(), 21);
    assert_eq!(names(&ask(list, &["qemu:"])).len(), 20);
    assert_eq!(names(&ask(list, &["qemu:dirty-bitmap:"])).len(), 20);
    assert_eq!(names(&ask(list, &["base:"])), [(0, BASE_ALLOCATION.to_owned())]);
    let day3 = "qemu:dirty-bitmap:day3";
    assert_eq!(names(&ask(list, &[day3])), [(0, day3.to_owned())]);
    let set = option::SET_META_CONTEXT;
    assert_eq!(names(&ask(set, &["qemu:dirty-bitmap:", "qemu:"])), []);
    let both = [(1, BASE_ALLOCATION.to_owned()), (2, day3.to_owned())];
    assert_eq!(names(&ask(set, &[day3, BASE_ALLOCATION, day3, "qemu:dirty-bitmap:no"])), both);
    let many: Vec<String> = (0..20).map(|day| format!("qemu:dirty-bitmap:day{day}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(names(&ask(set, &many)).len(), 16, "a block status reports no more");
    let mut input = ask(set, &[day3]);
    input.extend(go(option::GO, "days"));
    let contexts = vec![Context::Bitmap("day3".into())];
    let agreed = Agreement { name: "days".into(), structured: true, contexts };
    assert_eq!(negotiate(&input, &[]).0, End::Agreed(agreed));
}

#[test]
fn df_is_not_offered_without_structured_replies() {
    let mut input = client_flags();
    input.extend(go(option::GO, "vol"));
    let (_, out, _) = negotiate(&input, &[]);
    let (_, kind, data) = replies(&out).remove(0);
    let export = OptionReply::decode(kind, &data).unwrap();
    assert_eq!(
        export,
        OptionReply::Export { size_bytes: 1 << 30, flags: transmission_flag::HAS_FLAGS }
    );
}

#[test]
fn export_name_gets_the_old_reply() {
    for (flags, padding) in [(1u32, EXPORT_NAME_PADDING_BYTES), (3, 0)] {
        let mut input = flags.to_be_bytes().to_vec();
        input.extend(option_bytes(option::EXPORT_NAME, b"vol"));
        let (end, out, _) = negotiate(&input, &[]);
        let agreed = Agreement { name: "vol".into(), structured: false, contexts: Vec::new() };
        assert_eq!(end, End::Agreed(agreed));
        assert_eq!(out.len(), GREETING_BYTES + 10 + padding);
    }
    let mut input = client_flags();
    input.extend(option_bytes(option::EXPORT_NAME, b"nothing"));
    let (end, out, _) = negotiate(&input, &[]);
    assert_eq!(end, End::Failed(HandshakeError::NotOpened(Refusal::Unknown)));
    assert_eq!(out.len(), GREETING_BYTES);
}

#[test]
fn context_of_another_export_is_not_used() {
    let mut input = client_flags();
    input.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    input.extend(meta(option::SET_META_CONTEXT, "other", &[BASE_ALLOCATION]));
    input.extend(go(option::GO, "vol"));
    let (end, ..) = negotiate(&input, &[]);
    assert_eq!(
        end,
        End::Agreed(Agreement { name: "vol".into(), structured: true, contexts: Vec::new() })
    );

    // A second choice replaces the first one.
    let mut input = client_flags();
    input.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    input.extend(meta(option::SET_META_CONTEXT, "vol", &[BASE_ALLOCATION]));
    input.extend(meta(option::SET_META_CONTEXT, "vol", &[]));
    input.extend(go(option::GO, "vol"));
    let (end, ..) = negotiate(&input, &[]);
    assert_eq!(
        end,
        End::Agreed(Agreement { name: "vol".into(), structured: true, contexts: Vec::new() })
    );
}

#[test]
fn refused_options_get_their_errors_and_the_handshake_continues() {
    let mut input = client_flags();
    let long = "n".repeat(4096);
    let mut too_long = 4097u32.to_be_bytes().to_vec();
    too_long.extend([b'n'; 4097]);
    too_long.extend([0, 0]);
    input.extend(meta(option::SET_META_CONTEXT, "vol", &[BASE_ALLOCATION])); // not yet structured
    input.extend(meta(option::LIST_META_CONTEXT, "vol", &[]));
    input.extend(meta(option::LIST_META_CONTEXT, "vol", &["base:"]));
    input.extend(meta(option::LIST_META_CONTEXT, "vol", &["qemu:"]));
    input.extend(option_bytes(option::STARTTLS, &[]));
    input.extend(option_bytes(option::EXTENDED_HEADERS, &[]));
    input.extend(option_bytes(4242, &[1, 2, 3]));
    input.extend(go(option::INFO, "nothing"));
    input.extend(go(option::GO, "secret"));
    input.extend(go(option::GO, &long));
    input.extend(option_bytes(option::GO, &too_long));
    input.extend(option_bytes(option::GO, &[1]));
    input.extend(option_bytes(option::LIST, &[1]));
    input.extend(option_bytes(option::LIST, &[]));
    input.extend(option_bytes(option::ABORT, &[]));
    let (end, out, consumed) = negotiate(&input, &[]);
    assert_eq!((end, consumed), (End::Aborted, input.len()));
    assert_eq!(
        kinds(&out),
        [
            reply::ERR_INVALID,
            reply::META_CONTEXT,
            reply::ACK,
            reply::META_CONTEXT,
            reply::ACK,
            reply::ACK,
            reply::ERR_UNSUP,
            reply::ERR_UNSUP,
            reply::ERR_UNSUP,
            reply::ERR_UNKNOWN,
            reply::ERR_POLICY,
            reply::ERR_UNKNOWN,
            reply::ERR_TOO_BIG,
            reply::ERR_INVALID,
            reply::ERR_INVALID,
            reply::SERVER,
            reply::SERVER,
            reply::ACK,
            reply::ACK,
        ]
    );
    for (_, kind, data) in replies(&out) {
        if kind & reply::ERROR_BIT != 0 {
            assert!(data.len() <= MAX_ERROR_TEXT_BYTES, "an error echoes {} bytes", data.len());
        }
    }
}

#[test]
fn option_above_the_limit_ends_the_handshake() {
    let mut input = client_flags();
    for _ in 0..33 {
        input.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    }
    let (end, out, _) = negotiate(&input, &[]);
    assert_eq!(end, End::Failed(HandshakeError::TooManyOptions(32)));
    assert_eq!(kinds(&out).len(), 32);
}

/// `nbdinfo --list` and `qemu-nbd --list` ask for each export over one connection.
#[test]
fn client_that_lists_the_exports_may_ask_for_each_of_them() {
    let mut input = client_flags();
    // The second list raises the limit no further.
    for _ in 0..2 {
        input.extend(option_bytes(option::LIST, &[]));
    }
    for _ in 0..32 - 2 + 2 * OPTIONS_FOR_EACH_EXPORT {
        input.extend(meta(option::LIST_META_CONTEXT, "vol", &[]));
    }
    let (end, ..) = negotiate(&input, &[]);
    assert_eq!(end, End::Waiting);
    input.extend(go(option::INFO, "vol"));
    let (end, ..) = negotiate(&input, &[]);
    assert_eq!(end, End::Failed(HandshakeError::TooManyOptions(32 + 2 * OPTIONS_FOR_EACH_EXPORT)));
}

#[test]
fn option_of_4_gib_is_refused_from_its_header() {
    for (option, answers) in [(option::GO, 1), (option::EXPORT_NAME, 0), (99, 1)] {
        let mut input = client_flags();
        input.extend(OptionHeader { option, len_bytes: u32::MAX }.encode());
        let (end, out, _) = negotiate(&input, &[]);
        assert_eq!(end, End::Failed(HandshakeError::OptionTooLong(u32::MAX)));
        assert_eq!(kinds(&out), vec![reply::ERR_TOO_BIG; answers]);
    }
}

#[test]
fn wrong_magic_and_unknown_flags_end_the_handshake() {
    let mut input = client_flags();
    input.extend([0; 16]);
    assert!(matches!(negotiate(&input, &[]).0, End::Failed(HandshakeError::Wire(_))));
    let input = 7u32.to_be_bytes();
    assert_eq!(negotiate(&input, &[]).0, End::Failed(HandshakeError::UnknownClientFlags(7)));
}

/// Options that a client might send, valid or not.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("vol".to_owned()), Just("other".to_owned()), "[a-z]{0,8}"];
    let query = prop_oneof![
        Just("base:allocation".to_owned()),
        Just("base:".to_owned()),
        Just("qemu:dirty-bitmap:day1".to_owned()),
        "[a-z:]{0,9}",
    ];
    prop_oneof![
        (0u32..13, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(o, d)| option_bytes(o, &d)),
        (6u32..8, name.clone()).prop_map(|(o, n)| go(o, &n)),
        (9u32..11, name, prop::collection::vec(query, 0..4)).prop_map(|(o, n, q)| {
            meta(o, &n, &q.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        Just(option_bytes(option::STRUCTURED_REPLY, &[])),
    ]
}

proptest! {
    #[test]
    fn partition_of_the_stream_makes_no_difference(
        options in prop::collection::vec(any_option(), 0..12),
        tail in prop::collection::vec(any::<u8>(), 0..30),
        mut cuts in prop::collection::vec(0usize..600, 0..40),
    ) {
        let mut input = client_flags();
        input.extend(options.concat());
        input.extend(tail);
        cuts.sort_unstable();
        let whole = negotiate(&input, &[]);
        prop_assert_eq!(&negotiate(&input, &cuts), &whole);
        let each: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(&negotiate(&input, &each), &whole);
    }

    #[test]
    fn any_bytes_are_taken_without_panic(
        mut input in prop::collection::vec(any::<u8>(), 0..300),
        has_client_flags: bool,
    ) {
        if has_client_flags {
            input.splice(..0, client_flags());
        }
        let (_, _, consumed) = negotiate(&input, &[]);
        prop_assert!(consumed <= input.len());
    }
}

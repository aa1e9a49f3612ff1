use super::*;

/// Random 4 KiB requests: codes, first blocks and numbers of blocks.
struct Columns {
    ops: Vec<u8>,
    lbas: Vec<i64>,
    blocks: Vec<i64>,
}

impl Columns {
    fn random(count: usize, units: u64) -> Self {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let ops = (0..count).map(|_| next(2) as u8).collect();
        let lbas = (0..count).map(|_| 8 * next(units) as i64).collect();
        Self { ops, lbas, blocks: vec![8; count] }
    }

    fn with<T>(&self, run: impl FnOnce(&Requests<'_>) -> T) -> T {
        let count = self.ops.len();
        let (fua, streams, stored) = (vec![false; count], vec![0; count], vec![1000; count]);
        run(&Requests {
            ops: &self.ops,
            lbas: &self.lbas,
            blocks: &self.blocks,
            block_bytes: 512,
            fua: &fua,
            streams: &streams,
            stored: &stored,
        })
    }
}

fn player(name: &str) -> Player {
    let page = catalogue::find(name).expect("in the catalogue");
    Player::new(&page.device, 0, 7).expect("a possible device")
}

#[test]
fn closed_loop_keeps_so_many_outstanding() {
    let mut player = player("intel-320-80gb");
    let units = player.model().identity().capacity_bytes / 4096;
    let columns = Columns::random(5_000, units);
    let done = columns.with(|r| player.play_closed(16, r, &mut || true)).expect("plays");
    for (index, submitted) in done.submitted_ns.iter().enumerate() {
        let flying = done.completed_ns[..index].iter().filter(|at| *at > submitted).count();
        assert!(flying < 16, "request {index} is given while {flying} are outstanding");
    }
    assert_eq!(player.now_ns() as i64, *done.completed_ns.iter().max().unwrap());
}

#[test]
fn replay_at_the_same_instants_completes_the_same() {
    let mut first = player("intel-320-80gb");
    let units = first.model().identity().capacity_bytes / 4096;
    let columns = Columns::random(20_000, units);
    let done = columns.with(|r| first.play_closed(32, r, &mut || true)).expect("plays");
    let mut second = player("intel-320-80gb");
    let again = columns.with(|r| second.play_at(&done.submitted_ns, r, &mut || true));
    assert_eq!(again.expect("plays"), done);
    assert_eq!(first.model().digest(), second.model().digest());
    assert_eq!(first.counters(), second.counters());
}

#[test]
fn columns_that_make_no_sense_are_refused_with_the_request() {
    let mut player = player("ddrdrive-x1");
    let mut columns = Columns::random(3, 10);
    columns.lbas[1] = -8;
    let why = columns.with(|r| player.play_closed(1, r, &mut || true)).unwrap_err();
    assert_eq!(why.to_string(), "request 1: lba is -8, not from 0 to the end of the device");
    columns.lbas[1] = i64::MAX / 8 * 8;
    let why = columns.with(|r| player.play_closed(1, r, &mut || true)).unwrap_err();
    assert!(matches!(why, PlayError::OutOfRange { index: 1, column: "lba", .. }), "{why}");
    columns.lbas[1] = 1 << 40;
    let why = columns.with(|r| player.play_closed(1, r, &mut || true)).unwrap_err();
    assert!(matches!(why, PlayError::Refused { index: 1, .. }), "{why}");
    columns.ops[0] = 9;
    let why = columns.with(|r| player.play_closed(1, r, &mut || true)).unwrap_err();
    assert_eq!(why.to_string(), "request 0: op is 9, not the code of a kind of request");
    columns.blocks.pop();
    let why = columns.with(|r| player.play_closed(1, r, &mut || true)).unwrap_err();
    assert_eq!(why.to_string(), "blocks has 2 entries for 3 requests");
}

#[test]
fn time_that_runs_backwards_is_refused() {
    let mut player = player("ddrdrive-x1");
    let columns = Columns::random(3, 10);
    let why = columns.with(|r| player.play_at(&[0, 5_000, 4_000], r, &mut || true)).unwrap_err();
    assert!(matches!(why, PlayError::Backwards { index: 2, latest_ns: 5_000, .. }), "{why}");
}

#[test]
fn caller_that_does_not_want_to_go_on_is_heard() {
    let mut player = player("ddrdrive-x1");
    let columns = Columns::random(ASK_EVERY, 1000);
    let why = columns.with(|r| player.play_closed(4, r, &mut || false)).unwrap_err();
    assert_eq!(why, PlayError::Interrupted);
}

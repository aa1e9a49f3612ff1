# What every real-client test stands on: one folder, one server at most, and a clean-up that runs
# whatever happens. Sourced by the scripts beside it, never run.
#
# Enters: FOREBAY_BIN (the binary under test), FOREBAY_TEST_DIR (where big files may lie).
# Leaves: nothing; servers, mounts, loop devices and files of a test are gone when it ends.

set -u -o pipefail
PATH=$PATH:/usr/sbin:/sbin

NAME=$(basename "$0" .sh)
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
FOREBAY=${FOREBAY_BIN:-$ROOT/target/release/forebay}

# LONG=1 makes loads several times longer (`make prove`).
LONG=${FOREBAY_TEST_LONG:-0}
longer() { if [ "$LONG" = 0 ]; then echo "$1"; else echo "$2"; fi; }

# Exit codes that the runner knows.
readonly SKIPPED=77

say() { echo "   [$NAME] $*"; }

skip() {
    echo "skip $NAME: $*"
    exit $SKIPPED
}

fail() {
    echo "FAIL $NAME: $*"
    if [ -n "${DIR:-}" ] && [ -d "$DIR" ]; then
        for log in "$DIR"/serve.*.log; do
            [ -s "$log" ] && { echo "--- end of $(basename "$log")"; tail -n 15 "$log"; }
        done
        # A load that gave up has said why.
        [ -s "$DIR/writer.out" ] && { echo "--- the writer"; tail -n 5 "$DIR/writer.out"; }
    fi
    exit 1
}

# need PROGRAM...: the test is skipped, and says so, when one is not installed.
need() {
    for program in "$@"; do
        command -v "$program" >/dev/null 2>&1 || skip "$program is not installed"
    done
}

# The bindings are the system Python's, whatever python3 comes first on the path.
nbd_shell() { PATH=/usr/bin:$PATH nbdsh "$@"; }
need_nbd_shell() {
    need nbdsh
    PATH=/usr/bin:$PATH nbdsh -c 'pass' >/dev/null 2>&1 || skip "nbdsh does not start here"
}

# The same for the program that is a terminal.
on_screen() { PATH=/usr/bin:$PATH python3 "$HERE/terminal.py" "$@"; }
need_terminal() {
    need python3
    PATH=/usr/bin:$PATH python3 -c 'import pyte' 2>/dev/null || skip "the system Python has no pyte"
}

need_root() { [ "$(id -u)" = 0 ] || skip "needs root for $1"; }

need_mounts() {
    need_root "mounts and loop devices"
    need nbdfuse losetup mount umount fusermount3
    [ -e /dev/fuse ] || skip "there is no /dev/fuse here"
    [ -e /dev/loop-control ] || skip "there are no loop devices here"
}

# ---------------------------------------------------------------------------- clean-up

UNDO=()
# When the processes began that the clean-up ends, by their numbers. Numbers come again, and soon where
# tests run beside each other: by then one may be another test's.
declare -A BORN=()
undo() {
    local number
    UNDO+=("$1")
    for number in $(command grep -o 'kill [^;]*' <<<"$1" | command grep -ow '[0-9]\{2,\}'); do
        BORN[$number]=$(born "$number")
    done
}
# Without other programs: a test may have functions of their names.
born() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    echo "${20}"
}

# Spares processes that have the number of one which has ended.
kill_ours() {
    local word words=()
    for word in "$@"; do
        if [[ $word =~ ^[0-9]+$ ]]; then
            [ "${BORN[$word]-$(born "$word")}" = "$(born "$word")" ] || continue
        fi
        words+=("$word")
    done
    builtin kill "${words[@]}"
}

finish() {
    local code=$?
    trap - EXIT INT TERM
    set +u
    # The server first: nothing below may wait for it. (In a shell of its own: what it says of a server
    # that does not end must not keep the rest from being cleared away.)
    (kill_server) >/dev/null 2>&1
    SERVER=
    kill() { kill_ours "$@"; }
    for ((i = ${#UNDO[@]} - 1; i >= 0; i--)); do
        eval "${UNDO[$i]}" >/dev/null 2>&1
    done
    if [ "${KEEP:-0}" = 1 ] && [ $code = 1 ]; then
        echo "   kept: $DIR"
    else
        rm -rf "$DIR" "$RUN"
    fi
    exit $code
}

begin() {
    [ -x "$FOREBAY" ] || fail "there is no binary at $FOREBAY: cargo build --release -p forebay-cli"
    local base=${FOREBAY_TEST_DIR:-$ROOT/target/clients}
    mkdir -p "$base" || fail "cannot make $base"
    DIR=$(realpath "$(mktemp -d "$base/$NAME.XXXXXX")")
    # Socket paths must be short, whatever the name of the checkout is.
    RUN=$(mktemp -d "/tmp/fb.XXXXXX")
    chmod 755 "$RUN"
    SOCKET=$RUN/s
    export FOREBAY_STATE_DIR=$RUN/state
    SERVER=
    SERVES=0
    trap finish EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    cd "$DIR" || exit 1
}

pass() {
    echo "ok $NAME${1:+: $1}"
    exit 0
}

# ---------------------------------------------------------------------------- pool and server

# files SIZE NAME...: sparse files in the test's folder.
files() {
    local size=$1
    shift
    for file in "$@"; do truncate -s "$size" "$DIR/$file"; done
}

# run COMMAND...: must succeed; its output is shown when it does not.
run() {
    "$@" >"$DIR/.out" 2>&1 || fail "exit code $? from: $* $(printf '\n'; tail -n 15 "$DIR/.out")"
}

# refuse COMMAND...: must fail, with one line that says why.
refuse() {
    if "$@" >"$DIR/.out" 2>&1; then fail "was accepted: $*"; fi
    [ -s "$DIR/.out" ] || fail "refused without a word: $*"
}

# A port that no other test has meanwhile, nor the three after it; below those that connections get.
own_port() { echo $((10000 + $$ % 5500 * 4)); }

uri() { echo "nbd+unix:///$1?socket=$SOCKET"; }

# ended PID WHAT: waits until a process that was told to end is gone.
ended() {
    local pid=$1
    for _ in $(seq 1 3000); do
        lives "$pid" || return 0
        sleep 0.02
    done
    fail "$2 (process $pid) was told to end a minute ago and lives: $(cat "/proc/$pid/stat" "/proc/$pid/wchan")"
}
# One that its parent has not been told of yet has ended all the same.
lives() { kill -0 "$1" 2>/dev/null && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null; }

# goes_on FILE COUNT WHO: waits until the client that keeps its answers counted in FILE has COUNT more
# than now: however slow the machine is, a load was there.
goes_on() {
    local from
    from=$(counted_in "$1")
    await 120 "$2 more answers to $3" has_answers "$1" $((from + $2))
}
counted_in() { cat "$1" 2>/dev/null || echo 0; }
has_answers() { [ "$(counted_in "$1")" -ge "$2" ]; }

serving() { [ -n "$SERVER" ] && kill -0 "$SERVER" 2>/dev/null; }

# serve POOL [OPTION...]: returns when the listener answers.
serve() {
    local pool=$1
    shift
    SERVES=$((SERVES + 1))
    SERVE_LOG=$DIR/serve.$SERVES.log
    rm -f "$SOCKET"
    "$FOREBAY" serve "$pool" "$@" --listen "unix:$SOCKET" >"$SERVE_LOG" 2>&1 &
    SERVER=$!
    disown "$SERVER"
    for _ in $(seq 1 2400); do
        if grep -q 'ready: ' "$SERVE_LOG" 2>/dev/null; then return 0; fi
        serving || fail "the server ended instead of serving $pool"
        sleep 0.05
    done
    fail "the server was not ready within two minutes"
}

# A power cut as far as the process goes.
kill_server() {
    [ -n "$SERVER" ] || return 0
    kill -9 "$SERVER" 2>/dev/null
    ended "$SERVER" "the server, killed,"
    SERVER=
}

# end_of PID...: clients whose server is gone, which end by that or, ten seconds later, by force.
end_of() {
    local pid
    for pid in "$@"; do
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null
    done
    wait "$@" 2>/dev/null
}

stop_server() {
    kill -INT "$SERVER" || fail "the server is gone"
    for _ in $(seq 1 2400); do
        if ! kill -0 "$SERVER" 2>/dev/null; then SERVER=; return 0; fi
        sleep 0.05
    done
    fail "the server did not stop within two minutes of an interrupt"
}

# alive: a test must not pass over the server's dead body.
alive() {
    serving || fail "the server died${1:+: $1}"
    if grep -q 'panicked at' "$SERVE_LOG"; then fail "the server panicked"; fi
}

pool_json() { "$FOREBAY" pool "$@" --json; }

# await SECONDS WHAT COMMAND...: polls until the command succeeds. The seconds are those of a machine that has
# nothing else to do; this one has four times as many.
await() {
    local rounds=$(($1 * 20)) what=$2
    shift 2
    for _ in $(seq 1 "$rounds"); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    fail "waited in vain: $what"
}

# health: the health of pool p.
health() { "$FOREBAY" pool list --json | jq -r '.pools[0].health'; }

# load SEED: writes to p/busy in the background, with what was answered in a ledger.
load() {
    rm -f "$DIR/told"
    python3 "$HERE/ledger.py" write "$SOCKET" p/busy "$DIR/ledger" --seconds 600 --seed "$1" \
        --expect-end --told "$DIR/told" >"$DIR/writer.out" 2>&1 &
    WRITER=$!
    goes_on "$DIR/told" 1000 "the writer"
}

# loaded WHAT: ends that load, which must have gone on, and looks for all that was answered.
loaded() {
    goes_on "$DIR/told" 1000 "the writer"
    kill -TERM "$WRITER"
    wait "$WRITER" || fail "$1: writes suffered: $(cat "$DIR/writer.out")"
    run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
}

no_errors() {
    "$FOREBAY" pool status "$1" >"$DIR/.status" 2>&1 || fail "pool status: $(cat "$DIR/.status")"
    grep -q 'errors: No known data errors' "$DIR/.status" || fail "$(cat "$DIR/.status")"
}

scrub_clean() {
    run "$FOREBAY" pool scrub -w "$1"
    no_errors "$1"
}

hash_of() { sha256sum <"$1" | cut -d' ' -f1; }

# hash_volume VOLUME: what a client reads, as one hash.
hash_volume() {
    nbdcopy --connections=1 "$(uri "$1")" - 2>"$DIR/.hash.err" | sha256sum | cut -d' ' -f1 ||
        fail "reading $1: $(cat "$DIR/.hash.err")"
}

random_file() { head -c "$2" </dev/urandom >"$1"; }

# ---------------------------------------------------------------------------- file systems

# free_loop LOOP FILE: detaches a loop device, unless it is another test's by now.
free_loop() { is_free "$@" || losetup -d "$1"; }
is_free() { [ "$(cat "/sys/block/${1##*/}/loop/backing_file" 2>/dev/null)" != "$2" ]; }

# attach VOLUME: the volume as a loop device, its name in $LOOP.
attach() {
    mkdir -p "$RUN/fuse"
    nbdfuse "$RUN/fuse/" "$(uri "$1")" >"$DIR/nbdfuse.log" 2>&1 &
    FUSE=$!
    disown "$FUSE"
    : >"$DIR/nbdfuse.log"
    undo "fusermount3 -uz '$RUN/fuse'; kill $FUSE"
    await 20 "nbdfuse shows the volume: $DIR/nbdfuse.log" test -e "$RUN/fuse/nbd"
    LOOP=$(losetup -f --show "$RUN/fuse/nbd" 2>"$DIR/.out") || skip "losetup: $(cat "$DIR/.out")"
    undo "free_loop $LOOP '$RUN/fuse/nbd'"
}

mount_volume() {
    mkdir -p "$RUN/mnt"
    run mount "$@" "$LOOP" "$RUN/mnt"
    undo "umount -l '$RUN/mnt'"
}

# detach: after an orderly end or a killed server alike.
detach() {
    if grep -q " $RUN/mnt " /proc/mounts; then
        umount "$RUN/mnt" 2>/dev/null || umount -l "$RUN/mnt"
    fi
    free_loop "$LOOP" "$RUN/fuse/nbd" 2>/dev/null
    # The loop device lets go of its file a moment after the command.
    await 60 "$LOOP lets go of its file" is_free "$LOOP" "$RUN/fuse/nbd"
    fusermount3 -u "$RUN/fuse" 2>/dev/null || fusermount3 -uz "$RUN/fuse" 2>/dev/null
    for _ in $(seq 1 100); do
        kill -0 "$FUSE" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$FUSE" 2>/dev/null
}

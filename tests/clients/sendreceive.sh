#!/usr/bin/env bash
# Send and receive by real pipes between two pools, served and not: the same snapshots, as nbdcopy sees them.
# Streams that are damaged, cut short or in another order, kill -9 of either side, tokens, and a slow reader beside
# other clients. A program in Python that shares no code reads the streams.
. "$(dirname "$0")/lib.sh"
need nbdcopy nbdinfo tar
need_nbd_shell
begin
files 256M d0 d1 e0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1}
run "$FOREBAY" pool create q "$DIR/e0"
run "$FOREBAY" volume create -s -V 64M p/v
FAR=
FAR_SOCKET=$RUN/f
# serve_far: the second pool by a server of its own.
serve_far() {
    rm -f "$FAR_SOCKET"
    "$FOREBAY" serve q --listen "unix:$FAR_SOCKET" >far.log 2>&1 &
    FAR=$!
    disown "$FAR"
    await 60 "the second server" grep -q 'ready: ' far.log
}
undo 'kill -9 $FAR'
kill_far() {
    kill -9 "$FAR"
    ended "$FAR" "the second server, killed,"
    FAR=
}
stop_far() {
    kill -INT "$FAR"
    ended "$FAR" "the second server"
    FAR=
}
far_uri() { echo "nbd+unix:///$1?socket=$FAR_SOCKET"; }
send() { "$FOREBAY" volume send "$@"; }
receive() { "$FOREBAY" volume receive "$@"; }
# hold NAME BYTES...: a pipe that stands still after so many bytes, until 'go_on NAME NUMBER'.
hold() { python3 "$HERE/stream.py" hold "$@"; }
go_on() { touch "$1.$2"; }
# same SNAPSHOT...: the snapshots of p/v and q/w of these names are alike. Both pools must be served.
same() {
    local name
    for name in "$@"; do
        rm -f one other
        run nbdcopy "$(uri "p/v@$name")" one
        run nbdcopy "$(far_uri "q/w@$name")" other
        run cmp one other
    done
}
# Some blocks, whole and in part, and some holes, here and there.
cat >scatter.py <<'P'
import os, random
draw = random.Random(int(os.environ["SEED"]))
h.connect_uri(os.environ["URI"])
for _ in range(150):
    at = draw.randrange(0, 60 << 20) // 512 * 512
    if draw.random() < 0.2:
        h.trim(draw.randrange(1, 64) * 4096, at // 4096 * 4096)
    else:
        h.pwrite(draw.randbytes(draw.choice([512, 4096, 40960])), at)
h.flush()
P
scatter() { SEED=$1 URI=$(uri p/v) PATH=/usr/bin:$PATH run nbdsh -c 'exec(open("scatter.py").read())'; }

say "a whole volume, both pools unserved"
serve p
random_file data 24M
run nbdcopy data "$(uri p/v)"
for day in 1 2 3 4; do
    run "$FOREBAY" volume snapshot "p/v@day$day"
    scatter "$day"
done
stop_server
send p/v@day1 | receive q/w || fail "send | receive"
[ "$("$FOREBAY" volume list -H -t snapshot -o name q)" = q/w@day1 ] || fail "the snapshot is not there"

say "increments, one side served, then both; a chain by way of a file"
serve p
send -i @day1 p/v@day2 | receive q/w || fail "from a server"
serve_far
send -i day2 p/v@day3 >step || fail "send to a file"
receive q/w <step || fail "receive from a file"
[ "$(send -n -i @day2 p/v@day3 | sed 's/.*: \([0-9]*\) bytes.*/\1/')" = "$(stat -c %s step)" ] || fail "-n is wrong"
read -r snapshot source base _ data_bytes _ <<<"$(python3 "$HERE/stream.py" check step)"
[ "$snapshot $source $base" = "day3 p/v day2" ] || fail "the stream says $snapshot $source $base"
[ "$data_bytes" -gt 0 ] && [ "$data_bytes" -lt $((12 << 20)) ] || fail "an increment of $data_bytes bytes"
same day1 day2 day3
created() { "$FOREBAY" volume list -Hp -t snapshot -o creation "$1"; }
[ "$(created p | head -3)" = "$(created q)" ] || fail "snapshots have other times"

say "damaged streams change nothing, and say where"
send -i day3 p/v@day4 >step || fail "send"
run python3 "$HERE/stream.py" check step
before=$("$FOREBAY" volume list -Hp -t all q)
for how in cut half flip swap drop twice behind; do
    run python3 "$HERE/stream.py" damage step bad "$how"
    receive q/w <bad >.out 2>&1 && fail "a stream was received: $how"
    grep -q 'record [0-9]* at byte [0-9]*' .out || fail "$how: $(cat .out)"
    grep -q 'q/w is as before' .out || fail "$how: $(cat .out)"
    [ "$("$FOREBAY" volume list -Hp -t all q)" = "$before" ] || fail "$how left something behind"
done
receive q/none <bad >.out 2>&1 && fail "an increment made a volume"
receive q/new </dev/null >.out 2>&1 && fail "nothing is no stream"
same day3

say "what is changed is refused, and taken back with -F"
run nbdcopy data "$(far_uri q/w)"
receive q/w <step >.out 2>&1 && fail "a volume that was changed took an increment"
grep -q -- -F .out || fail "no word of -F: $(cat .out)"
receive -F q/w <step || fail "receive -F"
same day4

say "no client sees a volume before it is whole"
(send p/v@day1 | hold new 5000000 | receive q/new) >.slow 2>&1 &
slowly=$!
is_arriving() { "$FOREBAY" volume list -H -o name q | grep -q q/new; }
await 20 "a part of a stream" is_arriving
nbdinfo "$(far_uri q/new)" >/dev/null 2>&1 && fail "a client opened it"
nbdinfo --list "$(far_uri '')" 2>/dev/null | grep -q q/new && fail "it is in the list of exports"
for command in "snapshot q/new@x" "destroy q/new" "rename q/new q/other" "resize -V 128M q/new" "receive -A q/new"; do
    # shellcheck disable=SC2086 # words
    refuse "$FOREBAY" volume $command
    [ "$(wc -l <.out)" = 1 ] && grep -q 'is being received' .out || fail "$command: $(cat .out)"
done
refuse "$FOREBAY" volume destroy p/v@day1
refuse "$FOREBAY" pool export q
# Meanwhile both servers answer others.
scatter 9
run nbdcopy --flush data "$(far_uri q/w)"
run "$FOREBAY" pool status
go_on new 1
wait "$slowly" || fail "the stream that stood still: $(cat .slow)"
run nbdcopy "$(far_uri q/new)" other
run nbdcopy "$(uri p/v@day1)" one
run cmp one other
run "$FOREBAY" volume destroy -r q/new
run "$FOREBAY" volume rollback q/w@day4

say "a reader that stands still costs the server no memory"
resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$SERVER/status"; }
rss=$(resident)
(send p/v@day1 | hold still 100000 >/dev/null) &
slowly=$!
await 20 "a part of a stream" test -e still.held1
sleep 2
[ $(($(resident) - rss)) -lt 20000 ] || fail "from $rss to $(resident) kB"
refuse "$FOREBAY" volume rename p/v@day1 p/v@first
# The reader goes away.
kill "$(cat still.pid)"
wait "$slowly" 2>/dev/null
is_free() { "$FOREBAY" volume rename p/v@day1 p/v@first 2>/dev/null; }
await 20 "the end of a reader ends its stream" is_free
run "$FOREBAY" volume rename p/v@first p/v@day1

say "kill -9 of the receiving server: undone by the next import"
for seed in 5 15 25; do scatter "$seed"; done
run "$FOREBAY" volume snapshot p/v@day5
before=$(hash_of <(nbdcopy "$(far_uri q/w)" -))
# arrives NAME [OPTION...]: the first part of an increment, of which some is in the main store.
arrives() {
    local name=$1
    held=$name
    shift
    (send -i day4 p/v@day5 | hold "$name" 1500000 500000 |
        bash -c 'echo $$ >receiver.pid; exec "$@"' - "$FOREBAY" volume receive "$@" q/w) >.slow 2>&1 &
    slowly=$!
    await 20 "half of an increment" test -e "$name.held1"
    run "$FOREBAY" pool sync q
    [ "$("$FOREBAY" volume list -Hp -o written q/w)" -gt 200000 ] || fail "nothing has arrived yet"
}
# ends: the pipe ends, and what receives says that it has failed.
ends() {
    ended "$(cat receiver.pid)" "receive"
    kill "$(cat "$held.pid")" 2>/dev/null
    wait "$slowly" && fail "receive said that all was well"
}
arrives one
kill_far
ends
serve_far
is_whole() { nbdinfo "$(far_uri q/w)" >/dev/null 2>&1; }
await 20 "what was received to be undone" is_whole
[ "$(hash_of <(nbdcopy "$(far_uri q/w)" -))" = "$before" ] || fail "the volume is not as before"

say "kill -9 of the sending server, and an interrupt of the receiver"
arrives two
kill_server
go_on two 1
go_on two 2
ends
grep -q 'q/w is as before' .slow || fail "$(cat .slow)"
serve p
[ "$(hash_of <(nbdcopy "$(far_uri q/w)" -))" = "$before" ] || fail "the volume is not as before"
arrives three
kill -INT "$(cat receiver.pid)"
ends
await 20 "what was received to be undone" is_whole
[ "$(hash_of <(nbdcopy "$(far_uri q/w)" -))" = "$before" ] || fail "the volume is not as before"

say "the same with -s: kept over kill -9, and resumed by its token"
token() { "$FOREBAY" volume get -Hp -o value receive_resume_token q/w; }
arrives four -s
# What arrives later notices that the first part is committed.
sleep 1
go_on four 1
await 20 "more of it" test -e four.held2
run "$FOREBAY" pool sync q
kill_far
ends
serve_far
[ "$(token)" != - ] || fail "there is no token"
nbdinfo "$(far_uri q/w)" >/dev/null 2>&1 && fail "a client opened what is not whole"
refuse "$FOREBAY" volume destroy -r q/w
send -t "$(token)" >rest || fail "send -t"
[ "$(stat -c %s rest)" -lt "$(send -n -i day4 p/v@day5 | sed 's/.*: \([0-9]*\) bytes.*/\1/')" ] || fail "nothing was saved"
receive q/w <rest || fail "the rest was not received"
same day1 day2 day3 day4 day5
[ "$(token)" = - ] || fail "there is still a token"

say "abandoned"
scatter 6
run "$FOREBAY" volume snapshot p/v@day6
send -i day5 p/v@day6 >step || fail "send"
head -c $(($(stat -c %s step) / 2)) step >half
receive -s q/w <half >.out 2>&1 && fail "half a stream was received"
grep -q 'volume send -t 1-' .out || fail "no token: $(cat .out)"
run "$FOREBAY" volume receive -A q/w
same day5
receive q/w <step || fail "receive"
same day6

say "compressed and shared blocks as they are"
run "$FOREBAY" volume create -s -V 48M -o compression=zstd -o dedup=on p/packed
tar -cf - /usr/bin /usr/share/doc 2>/dev/null | head -c 16M >files
cat files files >twice
run nbdcopy --flush twice "$(uri p/packed)"
run "$FOREBAY" volume snapshot p/packed@a
scatter_into() { SEED=$1 URI=$(uri "$2") PATH=/usr/bin:$PATH run nbdsh -c 'exec(open("scatter.py").read().replace("60 << 20", "40 << 20"))'; }
scatter_into 9 p/packed
run "$FOREBAY" volume snapshot p/packed@b
send p/packed@a >plain || fail "send"
send -c p/packed@a >packed || fail "send -c"
run python3 "$HERE/stream.py" check packed
say "32 MiB of files, twice the same: $(stat -c %s plain) bytes, with -c $(stat -c %s packed)"
[ "$(stat -c %s packed)" -lt $(($(stat -c %s plain) / 3)) ] || fail "-c saves too little"
receive q/packed <packed || fail "receive of compressed blocks"
send -c -i @a p/packed@b >step || fail "send -c of an increment"
run python3 "$HERE/stream.py" check step
for how in cut flip swap; do
    run python3 "$HERE/stream.py" damage step bad "$how"
    receive q/packed <bad >.out 2>&1 && fail "a stream was received: $how"
    grep -q 'q/packed is as before' .out || fail "$how: $(cat .out)"
done
receive q/packed <step || fail "receive of a compressed increment"
for name in a b; do
    run nbdcopy "$(uri "p/packed@$name")" one
    run nbdcopy "$(far_uri "q/packed@$name")" other
    run cmp one other
done

say "a terminal is refused; the volume is a volume"
python3 - "$FOREBAY" <<'P' || fail "a terminal was accepted"
import os, pty, subprocess, sys
far, near = pty.openpty()
for words, ends in [(["send", "p/v@day1"], {"stdout": near}), (["receive", "q/x"], {"stdin": near})]:
    done = subprocess.run([sys.argv[1], "volume", *words], stderr=subprocess.PIPE, text=True, timeout=20, **ends)
    assert done.returncode == 2 and "terminal" in done.stderr, done
P
run nbdcopy --flush data "$(far_uri q/w)"
run "$FOREBAY" volume snapshot q/w@own
run "$FOREBAY" volume destroy q/w@own
scrub_clean p
scrub_clean q
stop_far
stop_server
pass "chains, damage, kills of both sides and tokens; streams read by a program of their own"

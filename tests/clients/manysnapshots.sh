#!/usr/bin/env bash
# A thousand snapshots of a volume: each holds what was written before it, also after kill -9, and
# after nine tenths of them were destroyed at once; the list has those that are left.
. "$(dirname "$0")/lib.sh"
need jq
need_nbd_shell
begin
files 1G d0
files 64M l0
run "$FOREBAY" pool create p "$DIR/d0" log "$DIR/l0"
run "$FOREBAY" volume create -s -V 256M p/v
serve p

# Before each snapshot some of 40 blocks are written, which lie in two leaves of the map: block i gets
# the snapshot's number if that is a multiple of i + 1. So what a snapshot holds can be computed.
cat >spots.py <<'P'
import os, struct
SPOTS = [at * 23 if at % 2 else 20000 + at * 7 for at in range(40)]
def held(number, spot):
    """What the block of a spot says in snapshot `number`; 0: never written."""
    return number // (spot + 1) * (spot + 1)
def check(h, number):
    for spot, block in enumerate(SPOTS):
        data = h.pread(4096, block * 4096)
        found = set(struct.unpack("<512Q", data))
        assert found == {held(number, spot)}, (number, spot, found, held(number, spot))
P
cat >make.py <<'P'
import glob, json, socket, struct
from spots import *
control = socket.socket(socket.AF_UNIX)
control.connect(glob.glob(os.environ["FOREBAY_STATE_DIR"] + "/control-*.sock")[0])
def take(length):
    data = b""
    while len(data) < length:
        part = control.recv(length - len(data))
        assert part, "the server is gone"
        data += part
    return data
def ask(pool, **action):
    message = {"version": 1, "pool": pool, "typed": "test", "action": action}
    text = json.dumps(message).encode()
    control.sendall(struct.pack(">I", len(text)) + text)
    reply = json.loads(take(struct.unpack(">I", take(4))[0]))
    assert "error" not in reply, reply
ask("", do="hello")
h.connect_uri(os.environ["URI"])
for number in range(1, int(os.environ["COUNT"]) + 1):
    for spot, block in enumerate(SPOTS):
        if number % (spot + 1) == 0:
            h.pwrite(struct.pack("<Q", number) * 512, block * 4096)
    ask("p", do="snapshot-take", snapshots=["v@%d" % number])
P
COUNT=$(longer 1000 10000)
export COUNT
made() { URI=$(uri p/v) PYTHONPATH=$DIR nbd_shell -c 'exec(open("make.py").read())'; }
holds() { # NUMBER...
    for number in "$@"; do
        NUMBER=$number URI=$(uri "p/v@$number") PYTHONPATH=$DIR nbd_shell -c 'from spots import *
h.connect_uri(os.environ["URI"])
check(h, int(os.environ["NUMBER"]))' >"$DIR/.out" 2>&1 || fail "v@$number: $(tail -n 3 "$DIR/.out")"
    done
}
listed() { "$FOREBAY" volume list -t snapshot p --json | jq '.snapshots | length'; }

say "$COUNT snapshots"
run made
[ "$(listed)" = "$COUNT" ] || fail "$(listed) snapshots are listed"
holds 1 2 63 64 65 $((COUNT / 2)) $((COUNT - 1)) "$COUNT"

say "after kill -9"
kill_server
serve p
[ "$(listed)" = "$COUNT" ] || fail "$(listed) snapshots are listed after kill -9"
holds 1 2 63 64 65 $((COUNT / 2)) $((COUNT - 1)) "$COUNT"

say "nine tenths are destroyed at once"
first=$((COUNT / 20 + 1)) last=$((COUNT - COUNT / 20))
run "$FOREBAY" volume destroy "p/v@$first%$last"
[ "$(listed)" = $((first - 1 + COUNT - last)) ] || fail "$(listed) snapshots are left"
holds 1 $((first - 1)) $((last + 1)) "$COUNT"
kill_server
serve p
holds 1 $((first - 1)) $((last + 1)) "$COUNT"
run "$FOREBAY" pool scrub -w p
"$FOREBAY" pool status p --json >status.json
run jq -e '.pools[0].condition == "healthy" or .pools[0].state == "ONLINE"' status.json
holds 1 $((first - 1)) $((last + 1)) "$COUNT"
pass "$COUNT snapshots, $((last - first + 1)) of them destroyed at once"

#!/usr/bin/env bash
# 'forebay qualify' on a file, a loop device (root), a volume over NBD and a model: each run is complete, and their
# reports have the same chapters and charts. The published procedures and a replayed trace run on the volume, too.
. "$(dirname "$0")/lib.sh"
need python3
begin
files 96M d0 d1
files 64M l0
run "$FOREBAY" pool create p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 32M p/v
serve p
VOLUME=$(uri p/v)
measure() {
    local name=$1
    shift
    run "$FOREBAY" qualify "$@" --rated-tb 70 --plain --json --out "$DIR/$name.fbq"
    cp "$DIR/.out" "$name.json"
}
measure file "$DIR/new.img" --size 32M --shrink 40 --for wal
[ ! -e new.img ] || fail "the file is still there"
measure volume "$VOLUME" --destroy "$VOLUME" --shrink 40 --for wal
measure model sim:intel-320-300gb --shrink 40 --for wal
kinds=(file volume model)
truncate -s 32M disk
if [ "$(id -u)" = 0 ] && LOOP=$(losetup --find --show "$DIR/disk" 2>/dev/null); then
    undo "free_loop $LOOP '$DIR/disk'"
    measure loop "$LOOP" --destroy "$LOOP" --shrink 40 --for wal
    kinds+=(loop)
else
    say "SKIPPED: there is no loop device"
fi
for kind in "${kinds[@]}"; do
    run "$FOREBAY" report "$kind.fbq" --json
    cp "$DIR/.out" "$kind.report.json"
done
python3 - "${kinds[@]}" <<'END' || fail "the results of different targets differ in form"
import json, sys
forms = {}
for kind in sys.argv[1:]:
    lines = open(f"{kind}.json").read()
    run = json.loads(lines[lines.index("{\n"):])
    assert run["complete"], kind
    durable = [o["measured"] for o in run["qualification"]["outcomes"] if "sync_writes" in o["kind"]]
    assert len(durable) == 14 and all(m["requests"] > 0 for m in durable), (kind, len(durable))
    # What was asked of the device was done: no step failed.
    assert all(o["measured"]["ended"] != "failed" for o in run["qualification"]["outcomes"]), kind
    report = json.load(open(f"{kind}.report.json"))["experiments"]
    forms[kind] = {(e["id"], c["id"], c["y"]["unit"]) for e in report for c in e["charts"]}
    print(kind, len(forms[kind]), "charts,", run["verdict"]["answer"])
first = forms.pop("file")
for kind, form in forms.items():
    assert form == first, (kind, form ^ first)
END
run "$FOREBAY" report "${kinds[@]/%/.fbq}" -o together.html
# SNIA's rounds take minutes, also at a thousandth of their times.
for procedure in ddrdrive-2010 ddrdrive-2012 review-2015 ess-2013 $(longer "" snia-pts); do
    run "$FOREBAY" qualify "$VOLUME" --destroy "$VOLUME" --procedure "$procedure" --shrink 1000 --plain \
        --below "$DIR/l0" --out "$procedure.fbq"
    run "$FOREBAY" qualify sim:ddrdrive-x1 --procedure "$procedure" --shrink 1000 --plain --out "model.$procedure.fbq"
    run "$FOREBAY" report "$procedure.fbq" "model.$procedure.fbq" --json
    # A device and its model are two lines of one chart.
    python3 - "$procedure" "$DIR/.out" <<'END' || fail "$procedure has no chart of both"
import json, sys
charts = [c for e in json.load(open(sys.argv[2]))["experiments"] for c in e["charts"]]
both = [c for c in charts if {s["role"] for s in c["series"]} >= {"measured", "simulated"}]
print(f"{sys.argv[1]}: {len(both)} of {len(charts)} charts have the volume and the model")
raise SystemExit(0 if both else 1)
END
done
printf 'time_ns,device,op,start_sector,sectors,flags\n0,0,W,0,8,\n1000,0,W,8,8,F\n2000,0,F,0,0,\n3000,0,R,0,16,\n' >t.csv
run "$FOREBAY" trace replay --overwrite --speed max --json t.csv "$VOLUME"
grep -q '"records": 4' "$DIR/.out" || fail "the replay did less than it should: $(cat "$DIR/.out")"
alive
stop_server
pass "a file, a volume, a model${LOOP:+ and a loop device} have one form of report"

#!/usr/bin/env bash
# SQLite on ext4 on a volume, with a write-ahead log and with a rollback journal: kill -9 of the server
# under both; every commit that a client saw is there, none is there in part, and the books balance.
. "$(dirname "$0")/lib.sh"
need python3 mkfs.ext4 e2fsck
need_mounts
# The system's Python has the module on Debian, whatever python3 comes first on the path.
PYTHON=/usr/bin/python3
"$PYTHON" -c 'import sqlite3' >/dev/null 2>&1 || PYTHON=python3
"$PYTHON" -c 'import sqlite3' >/dev/null 2>&1 || skip "Python has no sqlite3 here"
begin
files 256M d0 d1 d2
files 128M l0
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log "$DIR/l0"
run "$FOREBAY" volume create -V 256M p/v
serve p
attach p/v
run mkfs.ext4 -q -F -E lazy_itable_init=0 "$LOOP"
mount_volume

cat >"$DIR/books.py" <<'P'
import random, sqlite3, sys
verb, path, mode, ledger = sys.argv[1:5]
db = sqlite3.connect(path, isolation_level=None, timeout=60)

if verb == "make":
    # A page of half a kilobyte in one, sixteen in the other: both are unlike the volume's block.
    db.execute("pragma page_size = %d" % (512 if mode == "delete" else 16384))
    assert db.execute("pragma journal_mode = %s" % mode).fetchone() == (mode,)
    db.execute("create table account (id integer primary key, balance integer)")
    db.execute("create table entry (number integer primary key, source, target, amount, remark blob)")
    db.executemany("insert into account values (?, 1000)", [(i,) for i in range(200)])

elif verb == "write":
    # EXTRA: the journal's removal, which is the commit, is durable too before it is answered.
    db.execute("pragma synchronous = %s" % ("extra" if mode == "delete" else "full"))
    db.execute("pragma wal_autocheckpoint = 50")
    assert db.execute("pragma journal_mode").fetchone() == (mode,)
    rng = random.Random(path)
    number = db.execute("select coalesce(max(number), 0) from entry").fetchone()[0]
    out = open(ledger, "a")
    try:
        while True:
            number += 1
            source, target, amount = rng.randrange(200), rng.randrange(200), rng.randrange(1, 50)
            db.execute("begin immediate")
            db.execute("update account set balance = balance - ? where id = ?", (amount, source))
            db.execute("insert into entry values (?, ?, ?, ?, ?)",
                       (number, source, target, amount, rng.randbytes(rng.randrange(3000))))
            db.execute("update account set balance = balance + ? where id = ?", (amount, target))
            if number > 1500:
                db.execute("update entry set remark = null where number = ?", (number - 1500,))
            db.execute("commit")
            out.write("%d\n" % number)
            out.flush()
    except sqlite3.Error as error:
        print("ended by", error)

elif verb == "check":
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)], "integrity_check"
    seen = [int(line) for line in open(ledger)]
    there = [row[0] for row in db.execute("select number from entry order by number")]
    lost = set(seen) - set(there)
    assert not lost, "%d commits that the client saw are lost: %s" % (len(lost), sorted(lost)[:9])
    # The one that was under way may be there, too.
    assert there == list(range(1, len(there) + 1)), "there are gaps"
    assert len(there) <= seen[-1] + 1, "%d are there, %d were seen" % (len(there), seen[-1])
    balance = [1000] * 200
    for source, target, amount in db.execute("select source, target, amount from entry"):
        balance[source] -= amount
        balance[target] += amount
    assert balance == [row[0] for row in db.execute("select balance from account order by id")], "the books differ"
    print(len(seen), "commits seen and there")
P

modes="wal delete"
for mode in $modes; do run "$PYTHON" books.py make "$RUN/mnt/$mode.db" "$mode" "$mode.ledger"; done
run sync -f "$RUN/mnt"
lines_of() { wc -l 2>/dev/null <"$1" || echo 0; }
has_lines() { [ "$(lines_of "$1")" -ge "$2" ]; }
result=
for round in $(seq "$(longer 3 12)"); do
    writers=()
    for mode in $modes; do
        "$PYTHON" books.py write "$RUN/mnt/$mode.db" "$mode" "$DIR/$mode.ledger" >"writer.$mode" 2>&1 &
        writers+=($!)
    done
    for mode in $modes; do
        await 120 "commits of $mode" has_lines "$mode.ledger" $((round * $(longer 50 1000)))
    done
    alive
    kill_server
    end_of "${writers[@]}"
    for mode in $modes; do grep -q '^ended by' "writer.$mode" || say "the writer of $mode: $(tail -n 1 "writer.$mode")"; done
    detach
    serve p
    attach p/v
    # The file system's journal is replayed by a mount; then its check must find nothing to do.
    mount_volume
    run umount "$RUN/mnt"
    run e2fsck -fn "$LOOP"
    mount_volume
    result=
    for mode in $modes; do
        run "$PYTHON" books.py check "$RUN/mnt/$mode.db" "$mode" "$mode.ledger"
        result+="${result:+, }$mode: $(cat .out)"
    done
    say "kill $round: $result"
done
run umount "$RUN/mnt"
detach
alive
scrub_clean p
pass "$result"

#!/usr/bin/env bash
# Power cuts on devices whose every write and flush is recorded (qemu-storage-daemon, blklogwrites): at
# moments of the record, what was not flushed is lost, kept or torn, and the pool is imported from that.
. "$(dirname "$0")/lib.sh"
need python3 qemu-storage-daemon nbdfuse fusermount3
[ -e /dev/fuse ] || skip "there is no /dev/fuse here"
begin
undo "for d in '$RUN'/*/dev*; do fusermount3 -uz \$d; done"
# over SECONDS CUTS LAYOUT
over() {
    local folder=$DIR/w run=$RUN/w
    mkdir -p "$folder" "$run"
    python3 "$HERE/powercut.py" "$FOREBAY" "$folder" "$run" --seconds "$1" --cuts "$2" \
        --layout "$3" --seed "${SEED:-1}" >"$DIR/powercut.out" 2>&1 || fail "$(cat "$DIR/powercut.out")"
    say "$(tail -n 1 "$DIR/powercut.out")"
    rm -rf "$folder" "$run"
}
if [ "$LONG" = 0 ]; then
    over 3 24 "raidz1 3 log mirror 2"
    over 2 10 "mirror 2"
else
    for layout in 1 "mirror 2" "raid0 2 log 1 1" "raidz1 3 log mirror 2" "raidz2 4 log 1" "raidz3 5 log mirror 2"; do
        over 8 "${CUTS:-150}" "$layout"
    done
fi
pass "no image broke a promise"

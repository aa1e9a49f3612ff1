#!/usr/bin/env bash
# A pool is exported, its files move, and it is imported from where they are now; files of a served pool
# get other names; wrong moves are refused with a word and change nothing.
. "$(dirname "$0")/lib.sh"
need nbdcopy
begin
files 256M d0 d1 d2
files 64M l0 l1
files 32M small
run "$FOREBAY" pool create p raidz1 "$DIR"/d{0,1,2} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 64M p/v
random_file image 64M
serve p
run nbdcopy --flush image "$(uri p/v)"

say "refusals"
refuse "$FOREBAY" pool create q "$DIR/small"
refuse "$FOREBAY" pool create q "$DIR/none"
refuse "$FOREBAY" pool create q "$DIR/d0"
refuse "$FOREBAY" pool create -f q "$DIR/d0"
refuse "$FOREBAY" pool create q mirror "$DIR/small" "$DIR/small"
refuse "$FOREBAY" pool create -o nonsense=1 q "$DIR/image"
refuse "$FOREBAY" volume create -V 1E p/w
refuse "$FOREBAY" volume create -V 0 p/w
refuse "$FOREBAY" volume create -V 1M p/v
refuse "$FOREBAY" volume create -V 1M none/v
refuse "$FOREBAY" pool destroy none
# The same devices under another state: they are in use, and stay so.
refuse env FOREBAY_STATE_DIR="$RUN/other" "$FOREBAY" pool import -d "$DIR" p
refuse env FOREBAY_STATE_DIR="$RUN/other" "$FOREBAY" serve -d "$DIR" p --listen "unix:$RUN/o"
[ "$(hash_of image)" = "$(hash_volume p/v)" ] || fail "a refused command changed data"
stop_server

say "export, move, import"
run "$FOREBAY" pool export p
refuse "$FOREBAY" pool status p
mkdir elsewhere
mv d0 elsewhere/z
mv d1 elsewhere/y
mv d2 elsewhere/x
mv l0 l1 elsewhere/
"$FOREBAY" pool import -d "$DIR/elsewhere" >list.out 2>&1 || fail "$(cat list.out)"
grep -qw p list.out || fail "the pool is not listed: $(cat list.out)"
run "$FOREBAY" pool import -d "$DIR/elsewhere" p
serve p
[ "$(hash_of image)" = "$(hash_volume p/v)" ] || fail "changed by a move"
no_errors p
say "kill -9, move, import without an export"
run nbdcopy --flush "$DIR/image" "$(uri p/v)"
kill_server
mv elsewhere there
export FOREBAY_STATE_DIR=$RUN/third
run "$FOREBAY" pool import -f -d "$DIR/there" p
serve p
[ "$(hash_of image)" = "$(hash_volume p/v)" ] || fail "changed by a second move"
scrub_clean p
stop_server

say "a device and a side of the log get other names while the pool is served"
serve p
for at in there/z there/l1; do
    old=$DIR/$at new=$DIR/there/$(basename "$at").new
    run "$FOREBAY" pool offline p "$old"
    mv "$old" "$new"
    run nbdcopy --flush "$DIR/image" "$(uri p/v)"
    refuse "$FOREBAY" pool replace p "$old" "$new"
    grep -q "pool online p $new" "$DIR/.out" || fail "no way back is named: $(cat "$DIR/.out")"
    run "$FOREBAY" pool online -w p "$new"
done
stop_server
serve p
[ "$("$FOREBAY" pool status p --json | grep -c '\.new",$')" = 2 ] || fail "$("$FOREBAY" pool status p)"
[ "$(hash_of image)" = "$(hash_volume p/v)" ] || fail "changed by devices with other names"
no_errors p
scrub_clean p
stop_server

say "without its log, then without too many devices"
run "$FOREBAY" pool export p
mkdir hidden
mv there/x hidden/
mv there/y hidden/
refuse "$FOREBAY" pool import -d "$DIR/there" p
mv hidden/x hidden/y there/
run "$FOREBAY" pool import -d "$DIR/there" p
serve p
[ "$(hash_of image)" = "$(hash_volume p/v)" ] || fail "changed by refused imports"
pass "two moves, two new names, fifteen refusals"

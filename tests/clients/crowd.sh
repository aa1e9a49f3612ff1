#!/usr/bin/env bash
# Several administrators beside each other and beside clients, on one server: volumes come, go, are
# renamed, resized, cloned, promoted, rolled back, sent and limited, devices leave and return, a pool
# comes and goes, and the server is stopped and killed. `crowd.py` knows what must be read.
#   FOREBAY_TEST_SEED=N  draws the commands of another run (what meets what differs)
. "$(dirname "$0")/lib.sh"
need python3
begin
SEED=${FOREBAY_TEST_SEED:-$RANDOM}
say "FOREBAY_TEST_SEED=$SEED"
undo "kill -9 \$(cat '$DIR/serve.pid')"
python3 "$HERE/crowd.py" "$FOREBAY" "$DIR" "$SOCKET" "$(longer 30 900)" "$SEED" >crowd.out 2>&1 ||
    fail "$(tail -n 40 crowd.out)"
pass "$(tail -n 1 crowd.out)"

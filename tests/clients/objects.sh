#!/usr/bin/env bash
# The main store in an object store: a real gateway of S3, which is killed, stopped and restarted under
# load, a server that is killed, objects that go when nothing needs them, and one that is lost.
. "$(dirname "$0")/lib.sh"
need nbdcopy jq python3 versitygw
begin
files 256M l0 l1
mkdir -p "$DIR/gw/pools" "$DIR/meta"
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
PORT=$(own_port)
export AWS_ENDPOINT_URL=http://127.0.0.1:$PORT
gateway() {
    versitygw --access test --secret testsecret --port "127.0.0.1:$PORT" --quiet posix \
        --sidecar "$DIR/meta" "$DIR/gw" >>"$DIR/gateway.log" 2>&1 &
    GATEWAY=$!
    disown $GATEWAY
    undo "kill -9 $GATEWAY"
    await 20 "the gateway answers" bash -c "</dev/tcp/127.0.0.1/$PORT"
}
STORE="s3://pools/tank?size=8G"
stored() { du -s --apparent-size --block-size=1M "$DIR/gw/pools/tank/data" | cut -f1; }

say "refusals"
refuse "$FOREBAY" pool create p objects "$STORE"
refuse "$FOREBAY" pool create p objects "$DIR/l0" log "$DIR/l1"
refuse "$FOREBAY" pool create p objects s3://pools log "$DIR/l0"
refuse "$FOREBAY" pool create p "$DIR/l0" log "$STORE"
refuse "$FOREBAY" pool create p objects "file://relative" log "$DIR/l0"
gateway
refuse env AWS_SECRET_ACCESS_KEY=wrong "$FOREBAY" pool create p objects "$STORE" log "$DIR/l0"
grep -q SignatureDoesNotMatch "$DIR/.out" || fail "it does not say why: $(cat "$DIR/.out")"
refuse "$FOREBAY" pool create p objects "s3://nowhere/tank" log "$DIR/l0"
grep -q "nowhere" "$DIR/.out" || fail "it does not say which: $(cat "$DIR/.out")"
# As in a container without authorities; the pool below is made without them.
refuse env SSL_CERT_FILE=/none SSL_CERT_DIR=/none AWS_ENDPOINT_URL=https://127.0.0.1:9 \
    "$FOREBAY" pool create p objects "$STORE" log "$DIR/l0"
grep -q "install ca-certificates" "$DIR/.out" || fail "it does not say what to do: $(cat "$DIR/.out")"

say "a pool, by a profile, and what lies in the bucket"
mkdir "$DIR/aws"
printf '[profile lab]\nregion = us-east-1\nendpoint_url = %s\n' "$AWS_ENDPOINT_URL" >"$DIR/aws/config"
printf '[lab]\naws_access_key_id = test\naws_secret_access_key = testsecret\n' >"$DIR/aws/credentials"
run env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_REGION -u AWS_ENDPOINT_URL AWS_PROFILE=lab \
    AWS_CONFIG_FILE="$DIR/aws/config" AWS_SHARED_CREDENTIALS_FILE="$DIR/aws/credentials" \
    SSL_CERT_FILE=/none SSL_CERT_DIR=/none \
    "$FOREBAY" pool create -o txg_timeout=1 p objects "$STORE" log mirror "$DIR/l0" "$DIR/l1"
if grep -rq testsecret "$DIR/l0" "$DIR/gw/pools" "$FOREBAY_STATE_DIR"; then fail "credentials were written"; fi
run "$FOREBAY" volume create -V 256M p/busy
run "$FOREBAY" volume create -V 256M p/image
serve p
refuse "$FOREBAY" pool create q objects "$STORE" log "$DIR/l1"
random_file image 64M
run nbdcopy --flush image "$(uri p/image)"
run "$FOREBAY" pool sync p

shows() { "$FOREBAY" pool status --json p | jq -e ".. | objects | .objects? | objects | $1"; }
# The next group may be on its way just now.
counts() { await 20 "$1: $("$FOREBAY" pool status p)" shows "$1"; }
counts ".objects >= 4 and .stored_bytes >= 64 * 1048576 and .puts > .objects and .waiting_bytes == 0"
"$FOREBAY" pool status p | grep -q "objects of s3://pools/tank" || fail "$("$FOREBAY" pool status p)"

# stored_load SEED: a load that begins with an empty log and empty memory. After an outage the pool may pause for
# seconds before it asks the store again, and what the next one has to hold would come on top.
stored_load() {
    run "$FOREBAY" pool sync p
    load "$1"
}

say "the gateway is killed under load, and comes back"
stored_load 1
kill -9 $GATEWAY
goes_on "$DIR/told" 500 "the writer, without the store"
sleep 3
gateway
goes_on "$DIR/told" 500 "the writer, with it"
loaded "a killed gateway"
say "it stands still, and goes on"
stored_load 2
kill -STOP $GATEWAY
goes_on "$DIR/told" 500 "the writer, without answers of the store"
sleep 3
kill -CONT $GATEWAY
loaded "a gateway that stood still"
[ "$(health)" = ONLINE ] || fail "the pool is $(health)"
counts ".retries > 0"

say "it is away for longer than device_timeout: the pool is suspended, and goes on"
run "$FOREBAY" pool set device_timeout=3 p
stored_load 4
kill -9 $GATEWAY
suspended() { [ "$(health)" = SUSPENDED ]; }
await 30 "the pool is suspended" suspended
gateway
cleared() { "$FOREBAY" pool clear p && [ "$(health)" = ONLINE ]; }
await 30 "the pool goes on" cleared
loaded "a suspension"
run "$FOREBAY" pool set device_timeout=3600 p

say "kill -9 of the server, with the store away until it is back"
stored_load 3
kill -9 $GATEWAY
goes_on "$DIR/told" 500 "the writer, without the store"
kill_server
wait "$WRITER" || fail "the writer: $(cat "$DIR/writer.out")"
gateway
serve p
run python3 "$HERE/ledger.py" check "$SOCKET" p/busy "$DIR/ledger"
head -c 64M <(nbdcopy "$(uri p/image)" -) | cmp - image || fail "the image has changed"

say "what nothing needs is deleted"
scrub_clean p
before=$(stored)
run "$FOREBAY" volume destroy p/image
run "$FOREBAY" pool sync p
# Every commit adds a small object, and one of the image's has parts of other things.
fewer() { [ "$(stored)" -le $((before - 32)) ]; }
await 60 "objects are deleted: $before MiB before, $(stored) after" fewer

say "an object is lost: what it had is named, and nothing else suffers"
run "$FOREBAY" volume create -V 64M p/other
random_file other 48M
run nbdcopy --flush other "$(uri p/other)"
run "$FOREBAY" pool sync p
lost=$(find "$DIR/gw/pools/tank/data" -type f -size +8M -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2)
[ -n "$lost" ] || fail "no object of the volume"
rm "$lost"
refuse nbdcopy "$(uri p/other)" "$DIR/copy"
"$FOREBAY" pool scrub -w p >/dev/null 2>&1
"$FOREBAY" pool status -v p | grep -q "p/other" || fail "the damage is not named: $("$FOREBAY" pool status -v p)"
alive
stop_server
pass "a gateway killed and stopped under load, a killed server, objects deleted, one lost"

#!/usr/bin/env bash
# Events told to syslog, by mail, and to a webhook with TLS that refuses the first message: each with what to do.
# A sendmail that hangs holds up nothing, and what cannot be told to is refused by the check of the configuration.
. "$(dirname "$0")/lib.sh"
need python3 openssl jq
begin
files 128M d0 d1
run "$FOREBAY" pool create -f p mirror "$DIR"/d{0,1}
run "$FOREBAY" volume create -V 64M p/busy
run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out ca.pem -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE
python3 "$HERE/notify.py" "$RUN/log" "$DIR/syslog" ca.pem key.pem "$DIR/port" "$DIR/posted" >"$DIR/places.log" 2>&1 &
undo "kill $!"
await 20 "the places" test -s port
cat >sendmail <<END
#!/bin/sh
[ -e "$DIR/hang" ] && exec sleep 1000
echo "\$@" >>"$DIR/mailed.words"
cat >>"$DIR/mailed"
END
chmod +x sendmail
cat >forebay.toml <<END
[events]
syslog = "$RUN/log"
mail = "root@example.test"
sendmail = "$DIR/sendmail"
webhook = "https://localhost:$(cat port)/forebay?from=test"
webhook_ca = "$DIR/ca.pem"
END
run "$FOREBAY" serve --check --config forebay.toml
# wrong LINE PATTERN: the configuration with that line is refused, and the refusal says where.
wrong() {
    local key=${1%% *}
    sed "/^$key /d" forebay.toml >wrong.toml
    echo "$1" >>wrong.toml
    refuse "$FOREBAY" serve --check --config wrong.toml
    grep -q "$2" .out && grep -q 'line [1-9]' .out || fail "'$1' is refused with: $(cat .out)"
}
wrong "syslog = \"$DIR/none\"" 'no socket'
wrong "sendmail = \"$DIR/none\"" 'is no program'
wrong "sendmail = \"$DIR\"" 'is no program'
wrong 'webhook = "gopher://x"' 'expected https'
wrong "webhook_ca = \"$DIR/none\"" 'No such file'
wrong 'mail = "a b"' 'one address'
wrong 'mails_per_hour = 0' 'from 1 to 3600'
wrong 'level = "loud"' 'expected info'

serve p --config forebay.toml
run "$FOREBAY" pool offline p "$DIR/d1"
told() { grep -q "$1" "$2"; }
await 20 "syslog" told "^<28>forebay\[$SERVER\]: pool 'p' state-changed: .*OFFLINE.*'forebay pool status p'" syslog
await 20 "mail" told "'forebay pool status p' says what to do" mailed
grep -q '^To: root@example.test$' mailed && grep -q '^Subject: \[forebay .*\] p: state-changed' mailed ||
    fail "the mail: $(cat mailed)"
[ "$(cat mailed.words)" = "-t -oi" ] || fail "sendmail got: $(cat mailed.words)"
await 40 "the webhook, after it has refused once" told state-changed posted
jq -es '[.[].events[] | select(.event == "state-changed" and .level == "warning" and .device != null)] | length > 0' \
    posted >/dev/null || fail "the documents: $(cat posted)"
[ "$(jq -s '.[0].version' posted)" = 1 ] || fail "no version: $(cat posted)"
# What matters less comes to syslog alone.
run "$FOREBAY" pool online p "$DIR/d1"
await 20 "the end of the resilver, and a scrub" "$FOREBAY" pool scrub -w p
await 20 "the scrub in syslog" told '^<30>.*scan-ended: a scrub is complete' syslog
grep -q scan-ended mailed posted && fail "mail or webhook got what does not matter"

say "a sendmail that hangs"
touch hang
load 1
run "$FOREBAY" pool offline p "$DIR/d1"
loaded "a sendmail that hangs"
run timeout 20 "$FOREBAY" pool online p "$DIR/d1"
alive
stop_server
"$FOREBAY" pool status p >.out || fail "$(cat .out)"
pass "$(wc -l <syslog) lines of syslog, $(wc -l <posted) documents, $(grep -c ^Subject mailed) mails"

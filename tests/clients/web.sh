#!/usr/bin/env bash
# The web page as a client of HTTP sees it: fences, the token, figures of a pool that is written to, and clients
# that are slow, endless or none at all. webpage.sh looks at it with a browser.
. "$(dirname "$0")/lib.sh"
need python3 nbdcopy jq
begin
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
PORT=$(port)
files 96M d0 d1
files 64M l0
run "$FOREBAY" pool create -o txg_timeout=1 p mirror "$DIR"/d{0,1} log "$DIR/l0"
run "$FOREBAY" volume create -V 32M p/v
run "$FOREBAY" volume create -V 32M p/busy
serve p --web "127.0.0.1:$PORT"

# ask PATH [HEADER]...: prints the status, and keeps headers and body.
ask() {
    python3 - "$PORT" "$DIR/head" "$DIR/body" "$@" <<'END'
import http.client, sys
port, head, body, path, *headers = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
connection.request("GET", path, headers=dict(h.split(": ", 1) for h in headers))
answer = connection.getresponse()
open(body, "wb").write(answer.read())
open(head, "w").write("".join(f"{key}: {value}\n" for key, value in answer.getheaders()))
print(answer.status)
END
}
expect() {
    local wanted=$1 got
    shift
    got=$(ask "$@")
    [ "$got" = "$wanted" ] || fail "expected $wanted and got $got for: $*"
}
expect 200 /
python3 - "$DIR/head" "$DIR/body" <<'END' || fail "the page is not fenced in: $(cat "$DIR/head")"
import base64, hashlib, re, sys
head = dict(line.rstrip("\n").split(": ", 1) for line in open(sys.argv[1]))
page = open(sys.argv[2]).read()
policy = head["Content-Security-Policy"]
for tag, rule in [("script", "script-src"), ("style", "style-src")]:
    text, = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f"{rule} 'sha256-{digest}'" in policy, tag
assert policy.startswith("default-src 'none'") and "unsafe" not in policy
assert head["X-Content-Type-Options"] == "nosniff" and head["Cache-Control"] == "no-store"
outside = re.findall(r"(?:https?:)?//[a-z][^ '\"]*", page)
assert set(o for o in outside if "www.w3.org/2000/svg" not in o and ":" in o) == set(), outside
END
expect 200 /state.json
expect 404 /etc/passwd
expect 421 /state.json "Host: pools.evil.test"

say "figures of a pool that is written to"
load 1
shows() { ask /state.json >/dev/null && jq -e "$1" "$DIR/body" >/dev/null; }
POOL='.pools[0].view'
await 20 "the page has points with durable writes" shows \
    '(.fields | index("durable_p50")) as $at | .pools[0].fine | length > 2 and (last | .[$at] != null)'
shows "$POOL.status.name == \"p\" and $POOL.stats.since_import.writes.count > 0 and .server.clients > 0" ||
    fail "what the page is told: $(cat "$DIR/body")"
shows "($POOL.volumes | length) == 2 and $POOL.status.condition == \"ok\"" || fail "$(cat "$DIR/body")"
# Fields that the pictures of webpage.sh rely on are there.
python3 "$HERE/webstates.py" missing "$DIR/body" || fail "fields are missing"
last=$(jq '.pools[0].fine | last | .[0]' "$DIR/body")
ask "/state.json?after=$last" >/dev/null
jq -e "[.pools[0].fine[][0]] | all(. > $last)" "$DIR/body" >/dev/null || fail "points are told twice"

say "clients that are none, beside the load"
python3 - "$PORT" <<'END'
import os, socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(60)]
for at, one in enumerate(held):
    try:
        one.sendall([b"GET /sta", b"\0" * 20000, b"\r\n\r\n", os.urandom(500), b"POST / HTTP/1.1\r\n\r\n"][at % 5])
    except OSError:
        pass
# The page is answered while they are held.
new = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
new.settimeout(20)
new.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
assert new.recv(15) == b"HTTP/1.1 200 OK", "no answer beside held connections"
END
[ $? = 0 ] || fail "connections that are held keep others out"
loaded "the page"
alive
stop_server

say "the token"
OTHER=$(port)
refuse "$FOREBAY" serve p --web "0.0.0.0:$OTHER" --listen "unix:$RUN/other"
grep -q 'web-token' "$DIR/.out" || fail "the refusal does not say what helps: $(cat "$DIR/.out")"
python3 -c 'import secrets; print(secrets.token_hex(16))' >"$DIR/token"
refuse "$FOREBAY" serve p --web "0.0.0.0:$OTHER" --web-token "$DIR/token" --listen "unix:$RUN/other"
grep -q 'every user' "$DIR/.out" || fail "a token that every user can read: $(cat "$DIR/.out")"
chmod 600 "$DIR/token"
printf 'web = "0.0.0.0:%s"\nweb_token = "%s"\n' "$PORT" "$DIR/token" >"$DIR/web.toml"
run "$FOREBAY" serve --check --config "$DIR/web.toml" --json
jq -e ".web == \"0.0.0.0:$PORT\" and .web_token" "$DIR/.out" >/dev/null || fail "$(cat "$DIR/.out")"
sed '/web_token/d' "$DIR/web.toml" >"$DIR/open.toml"
refuse "$FOREBAY" serve --check --config "$DIR/open.toml"
grep -q 'line 1' "$DIR/.out" || fail "the check names no line: $(cat "$DIR/.out")"
serve p --config "$DIR/web.toml"
expect 200 /
expect 401 /state.json
grep -q 'WWW-Authenticate: Bearer' "$DIR/head" || fail "no word of a token: $(cat "$DIR/head")"
[ "$(wc -c <"$DIR/body")" -lt 100 ] || fail "data without the token"
expect 401 /state.json "Authorization: Bearer $(tr 0-9 1-90 <"$DIR/token")"
expect 200 /state.json "Authorization: Bearer $(cat "$DIR/token")" "Host: pools.example"
alive
stop_server
pass "fenced in, told apart by a token, and unharmed by 60 connections that say nothing"

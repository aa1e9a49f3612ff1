#!/usr/bin/env bash
# The web page in a browser: what it draws of a real pool under load, and pictures of pools that are well,
# degraded, new and missing, wide and narrow, in light and in dark.
. "$(dirname "$0")/lib.sh"
need chromium python3 nbdcopy
begin
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
files 96M d0 d1
files 64M l0 l1
run "$FOREBAY" pool create -o txg_timeout=1 p mirror "$DIR"/d{0,1} log mirror "$DIR"/l{0,1}
run "$FOREBAY" volume create -V 32M p/busy
serve p --web "127.0.0.1:$PORT"
browse() { timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars "$@" 2>"$DIR/browser.log"; }
# well: the page broke none of its fences, and its script did not fail.
well() {
    grep -qiE 'uncaught|refused to|violates' "$DIR/browser.log" && fail "the page: $(cat "$DIR/browser.log")"
    return 0
}
load 1
drawn() {
    browse --virtual-time-budget=4000 --dump-dom "http://127.0.0.1:$PORT/" >dom.html
    well
    grep -q 'class="series s2' dom.html
}
await 20 "the latency of durable writes is drawn" drawn
for word in 'p/busy' 'mirror-0' "$DIR/l1" 'ONLINE' 'Write amplification' 'class="shaft"' 'live'; do
    grep -qF "$word" dom.html || fail "the page lacks: $word"
done
loaded "the page"
run "$FOREBAY" pool offline p "$DIR/d1"
told() { drawn; grep -q 'state-changed' dom.html && grep -q 'forebay pool online p' dom.html; }
await 20 "a device that is offline, its event, and what to do" told
python3 - "$PORT" "$DIR/page" "$DIR/headers" <<'END'
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
connection.request("GET", "/")
answer = connection.getresponse()
open(sys.argv[2], "wb").write(answer.read())
own = ("Content-Type", "Content-Length", "Connection")
open(sys.argv[3], "w").writelines(f"{k}: {v}\n" for k, v in answer.getheaders() if k not in own)
END
alive
stop_server

# Pictures, of states that do not change. UPDATE_GOLDEN=1 replaces those of golden/, after a look at them.
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] ||
    skip "the pictures need the DejaVu fonts (Debian: apt-get install fonts-dejavu-core)"
cat >fonts.conf <<'END'
<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts/truetype/dejavu</dir><cachedir prefix="xdg">fontconfig</cachedir>
<alias binding="strong"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias></fontconfig>
END
export FONTCONFIG_FILE=$DIR/fonts.conf TZ=UTC
GOLDEN=$ROOT/tests/clients/golden
PICTURES=$ROOT/tests/clients/pictures.py
python3 "$HERE/webstates.py" serve page headers port &
undo "kill $!"
await 20 "the states are shown" test -s port
# photograph NAME STATE WIDTH HEIGHT THEME: at half of its size.
photograph() {
    browse --virtual-time-budget=4000 --force-device-scale-factor=0.5 --window-size="$3,$4" \
        --screenshot="$DIR/$1.png" "http://127.0.0.1:$(cat port)/$2/#theme=$5"
    well
    [ -s "$1.png" ] || fail "there is no picture '$1'"
    "$PICTURES" reduce "$1.png" "$1.small.png" || fail "the picture '$1' cannot be read"
}
judge() {
    [ "${UPDATE_GOLDEN:-0}" = 0 ] || cp "$1.small.png" "$GOLDEN/web-$1.png"
    echo "$1: $("$PICTURES" compare "$GOLDEN/web-$1.png" "$1.small.png")" >"$1.said" ||
        fail "the page looks different, $(cat "$1.said"): $DIR/$1.png"
    cat "$1.said"
}
photograph light healthy 1400 2000 light
photograph dark degraded 1400 2000 dark
photograph narrow degraded 480 3600 light
photograph several several 1000 1600 light
photograph new new 1000 1600 dark
photograph empty empty 800 400 light
for name in light dark narrow several new empty; do judge $name; done
light=$("$PICTURES" brightness light.small.png) dark=$("$PICTURES" brightness dark.small.png)
[ "$light" -gt 180 ] && [ "$dark" -lt 100 ] || fail "light is $light bright, and dark $dark"
# What must be noticed: another theme, and a pool that is not well.
changed() {
    if "$PICTURES" compare "$GOLDEN/web-light.png" changed.small.png >changed.said; then
        fail "$1 was not noticed: $(cat changed.said)"
    fi
    echo "$1: $(cat changed.said)"
}
photograph changed healthy 1400 2000 dark
changed "the dark page"
photograph changed degraded 1400 2000 light
changed "a pool that is degraded"
pass "a pool under load is drawn, and six pictures are as they should be"

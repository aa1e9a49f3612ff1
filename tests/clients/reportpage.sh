#!/usr/bin/env bash
# The page of 'forebay report' in a browser without a network: charts are drawn, in light and in dark,
# and what is printed has them too.
. "$(dirname "$0")/lib.sh"
need chromium python3
begin
run "$FOREBAY" qualify sim:ddrdrive-x1 --shrink 50 --out a.fbq
run "$FOREBAY" qualify sim:vertex-2-pro --shrink 50 --out b.fbq
run "$FOREBAY" report a.fbq b.fbq -o page.html
browse() { timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=600,800 "$@" 2>"$DIR/browser.log"; }
browse --virtual-time-budget=10000 --dump-dom "file://$DIR/page.html" >dom.html || fail "the browser: $(tail -n 3 "$DIR/browser.log")"
grep -qi 'uncaught' "$DIR/browser.log" && fail "the page's script fails: $(grep -i uncaught "$DIR/browser.log")"
# Each chart of the document is drawn: it has a canvas or a drawing of its own.
"$FOREBAY" report --json a.fbq b.fbq >results.json
python3 - <<'END' || fail "charts are missing on the page"
import json, re
charts = sum(len(e["charts"]) for e in json.load(open("results.json"))["experiments"])
dom = open("dom.html").read()
drawn = len(re.findall(r'_echarts_instance_="', dom))
print(f"{drawn} of {charts} charts are drawn")
raise SystemExit(0 if drawn == charts > 5 else 1)
END
for theme in light dark; do
    browse --virtual-time-budget=10000 --screenshot="$DIR/$theme.png" "file://$DIR/page.html#theme=$theme"
    [ -s "$theme.png" ] || fail "there is no picture of the $theme page"
done
# The mean brightness of the pictures: one is light, the other dark, and neither is blank.
python3 - <<'END' || fail "the pictures are not what they should be"
import struct, zlib
def pixels(name):
    data, at, parts = open(name, "rb").read(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
        parts += body if kind == b"IDAT" else b""
        at += length + 12
    assert depth == 8, depth
    step = {2: 3, 6: 4}[color]
    raw, before, rows = zlib.decompress(parts), bytearray(width * step), []
    for y in range(height):
        line = bytearray(raw[y * (width * step + 1) + 1:(y + 1) * (width * step + 1)])
        method = raw[y * (width * step + 1)]
        for x in range(len(line)):
            a = line[x - step] if x >= step else 0
            b, c = before[x], before[x - step] if x >= step else 0
            p = a + b - c
            near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[x] = (line[x] + [0, a, b, (a + b) // 2, near][method]) & 255
        rows.append(bytes(line))
        before = line
    return rows
means = {}
for name in ["light", "dark"]:
    rows = pixels(name + ".png")
    assert len(set(rows)) > 200, f"{name} is blank"
    means[name] = sum(map(sum, rows)) / sum(map(len, rows))
print(means)
raise SystemExit(0 if means["light"] > 180 and means["dark"] < 100 else 1)
END
pass "every chart is drawn, light and dark"

#!/usr/bin/env bash
# The page of 'forebay simulate all' in a browser without a network, wide and narrow: every chart is drawn, and
# nothing sticks out of the page. What must be noticed, a table that is too wide, is.
. "$(dirname "$0")/lib.sh"
need chromium python3
begin
run "$FOREBAY" simulate all --small --out lab
cat >probe.py <<'END'
"""Adds a script to a page that says, in its title, how many charts are drawn and what sticks out."""
import sys

PROBE = """<script>setTimeout(function () {
  var width = document.documentElement.clientWidth, out = [];
  document.querySelectorAll('body *').forEach(function (x) {
    var box = x.getBoundingClientRect();
    if (box.width === 0 || box.right <= width + 1) { return; }
    for (var p = x.parentElement; p && p !== document.body; p = p.parentElement) {
      if (/auto|scroll|hidden/.test(getComputedStyle(p).overflowX)) { return; }
    }
    out.push(x.tagName + '.' + x.className);
  });
  document.title = 'PROBE ' + width + ' ' + document.querySelectorAll('[_echarts_instance_]').length +
    ' ' + out.length + ' ' + out.slice(0, 4).join(' ');
}, 6000)</script></body>"""
page, to = sys.argv[1:]
text = open(page, encoding="utf-8").read()
# The chart library has such an end in its own text.
open(to, "w", encoding="utf-8").write(PROBE.join(text.rsplit("</body>", 1)))
END
# looked PAGE WIDTH: width, charts, and elements that stick out.
looked() {
    python3 probe.py "$1" probed.html || fail "the page cannot be read"
    timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size="$2,900" \
        --virtual-time-budget=12000 --dump-dom "file://$DIR/probed.html" 2>browser.log |
        sed -n 's|.*<title>PROBE \([^<]*\)</title>.*|\1|p'
}
charts=$(python3 -c 'import json; print(sum(len(e["charts"]) for e in json.load(open("lab/results.json"))["experiments"]))')
for width in 1400 500; do
    read -r is_width drawn out what <<<"$(looked lab/report.html $width)"
    [ "$is_width" = $width ] || fail "the browser shows $is_width pixels, not $width"
    [ "$drawn" -ge "$charts" ] && [ "$charts" -gt 20 ] || fail "$drawn of $charts charts are drawn at $width pixels"
    [ "$out" = 0 ] || fail "$out elements stick out at $width pixels: $what"
done
sed 's|</head>|<style>h1 { width: 3000px }</style></head>|' lab/report.html >wide.html
read -r _ _ out _ <<<"$(looked wide.html 1400)"
[ "${out:-0}" -gt 0 ] || fail "a heading of 3000 pixels was not noticed"
pass "$charts charts are drawn, and nothing sticks out at 1400 and 500 pixels"

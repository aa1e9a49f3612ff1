#!/usr/bin/env bash
# The page of 'forebay report' in a browser without a network: charts are drawn, in light and in dark, the
# keyboard reaches and reads them, and what is printed has them too.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pictures.lib.sh"
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
python3 "$HERE/keyboard.py" "file://$DIR/page.html" results.json >keyboard.said ||
    fail "$(cat keyboard.said)"
cat keyboard.said
need_fonts
# photograph NAME PAGE WIDTH HEIGHT THEME: at half of its size.
photograph() {
    browse --virtual-time-budget=10000 --force-device-scale-factor=0.5 --window-size="$3,$4" \
        --screenshot="$DIR/$1.png" "file://$DIR/$2#theme=$5"
    [ -s "$1.png" ] || fail "there is no picture '$1'"
    "$PICTURES" reduce "$1.png" "$1.small.png" || fail "the picture '$1' cannot be read"
}
# Long tables are cut, so that charts are in the picture.
sed 's|</head>|<style>#difference, #verdict tr:nth-child(n+8) { display: none }</style></head>|' page.html >cut.html
photograph light cut.html 1000 5000 light
photograph dark cut.html 1000 5000 dark
photograph wide cut.html 2000 4000 light
photograph narrow cut.html 480 6000 light
for name in light dark wide narrow; do judge report $name; done
light=$("$PICTURES" brightness light.small.png) dark=$("$PICTURES" brightness dark.small.png)
[ "$light" -gt 180 ] && [ "$dark" -lt 100 ] || fail "light is $light bright, and dark $dark"
if command -v pdftoppm >/dev/null; then
    browse --virtual-time-budget=10000 --no-pdf-header-footer --print-to-pdf="$DIR/page.pdf" "file://$DIR/page.html"
    # Paper has the verdict first, each chart's title, and what is folded on the screen; it has no buttons.
    pdftotext -layout page.pdf page.txt || fail "the printed page has no text"
    python3 - <<'END' || fail "the printed page lacks what it should have"
import json, re
squeeze = lambda text: re.sub(r"[^a-z0-9]", "", text.lower())
printed = squeeze(open("page.txt").read())
results = json.load(open("results.json"))["experiments"]
wanted = [e["title"] for e in results] + [c["title"] for e in results for c in e["charts"]]
wanted += [f["text"] for f in results[0]["findings"]] + [e["method"] for e in results if e["method"]]
missing = [text for text in wanted if squeeze(text) not in printed]
extra = [text for text in ["Save as CSV", "Save results as JSON", "Logarithmic axis"] if squeeze(text) in printed]
first = printed.find(squeeze(results[0]["findings"][0]["text"]))
late = first > printed.find(squeeze(results[0]["charts"][0]["title"])) if results[0]["charts"] else False
print(f"{len(wanted)} titles, findings and methods on paper; missing {missing}, in the way {extra}")
raise SystemExit(1 if missing or extra or late else 0)
END
    pdftoppm -r 50 -f 1 -l 2 -png page.pdf printed || fail "the printed page cannot be read"
    for sheet in printed-*[12].png; do
        name=${sheet%.png}
        name=printed-$((10#${name##*-}))
        "$PICTURES" reduce "$sheet" "$name.small.png"
        judge report "$name"
    done
else
    say "SKIPPED: the printed page is not looked at without pdftoppm (Debian: apt-get install poppler-utils)"
fi
# What must be noticed: a chart that is missing, a verdict that is, and the wrong theme.
changed() {
    photograph changed "$2" 1000 5000 "${3:-light}"
    if "$PICTURES" compare "$GOLDEN/report-light.png" changed.small.png >changed.said; then
        fail "$1 was not noticed: $(cat changed.said)"
    fi
    echo "$1: $(cat changed.said)"
}
sed 's|</head>|<style>#verdict table { display: none }</style></head>|' cut.html >notable.html
sed 's|</head>|<style>[_echarts_instance_] { visibility: hidden }</style></head>|' cut.html >nochart.html
changed "a page without its first tables" notable.html
changed "a page without charts" nochart.html
changed "the dark page" cut.html dark
pass "every chart is drawn and read by the keyboard, and light, dark, wide, narrow and printed pages look as they should"

#!/usr/bin/env bash
# The page of 'forebay simulate all' in a browser without a network, at 1400 and 420 pixels, dark and printed: every
# chart is drawn, nothing sticks out, and pictures are those of golden/.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pictures.lib.sh"
need chromium python3
begin
need_fonts
run "$FOREBAY" simulate all --small --out lab
python3 "$HERE/labpage.py" "file://$DIR/lab/report.html" lab/results.json >looked 2>&1 || fail "$(cat looked)"
cat looked
charts=$(python3 -c 'import json; print(sum(len(e["charts"]) for e in json.load(open("lab/results.json"))["experiments"]))')
[ "$charts" -gt 20 ] || fail "the page has $charts charts"
for view in light dark narrow; do
    for part in head lines intervals; do
        "$PICTURES" reduce $view-$part.png $view-$part.small.png || fail "the picture '$view-$part' cannot be read"
        judge lab $view-$part
    done
done
# What must be noticed: another theme, and another part.
for other in dark-lines light-intervals; do
    "$PICTURES" compare "$GOLDEN/lab-light-lines.png" $other.small.png >compared && fail "$other passes for light-lines"
done
command -v pdftotext >/dev/null || pass "$charts charts; SKIPPED: paper needs poppler-utils"
# Paper has the recommendation, each title, finding and method, and no buttons.
pdftotext -layout page.pdf page.txt || fail "the printed page has no text"
python3 - <<'END' || fail "the printed page lacks what it should have"
import json, re
squeeze = lambda text: re.sub(r"[^a-z0-9]", "", text.lower())
printed = squeeze(open("page.txt").read())
results = json.load(open("lab/results.json"))["experiments"]
wanted = [e["title"] for e in results] + [c["title"] for e in results for c in e["charts"]]
wanted += [f["text"] for e in results for f in e.get("advice", []) + e["findings"]] + [e["method"] for e in results]
missing = [text for text in wanted if squeeze(text) not in printed]
extra = [text for text in ["Save as CSV", "Save results as JSON", "Logarithmic axis"] if squeeze(text) in printed]
print(f"{len(wanted)} titles, sentences and methods on paper; missing {missing}, in the way {extra}")
raise SystemExit(1 if missing or extra else 0)
END
pass "$charts charts are drawn, nothing sticks out at 1400 and 420 pixels, and pictures and paper are as they were"

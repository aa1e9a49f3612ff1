# Recordings of one run, compared: the columns of iopattern and each row of the seek histogram. Sourced
# after lib.sh.

# same_patterns SOURCE...: 'forebay trace' finds in each the pattern and the seeks of the first.
same_patterns() {
    local source
    for source in "$@"; do
        run "$FOREBAY" trace iopattern --total "$source"
        grep -v '%RAN' "$DIR/.out" >"$source.pattern"
        run "$FOREBAY" trace seeksize --as bcc --total --json "$source"
        python3 -c '
import json, sys
def rows(value):
    if isinstance(value, dict):
        if "count" in value and not isinstance(value["count"], (dict, list)):
            yield tuple(sorted((k, v) for k, v in value.items() if isinstance(v, int)))
        for inner in value.values():
            yield from rows(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from rows(inner)
print(*sorted(rows(json.load(sys.stdin))), sep="\n")' <"$DIR/.out" >"$source.seeks"
        say "$source: $(cat "$source.pattern")"
        [ -s "$source.seeks" ] || fail "there is no histogram of $source"
        cmp -s "$1.pattern" "$source.pattern" || fail "the patterns differ: $(cat "$1.pattern" "$source.pattern")"
        cmp -s "$1.seeks" "$source.seeks" ||
            fail "the seeks differ: $(diff "$1.seeks" "$source.seeks" | head -n 5)"
    done
}

#!/bin/sh
# Plants each bug of this folder in a copy of the tree and counts the scenarios until it is caught.
#
#   crates/dst/planted/run.sh [NAME]...      all of them without a name
#   crates/dst/planted/run.sh --check        only whether every patch still applies
#
# Environment: SEED (1), RUNS (400): the scenarios that each may take, VIA (nice): what runs the
# costly commands. The first lines of a patch
# say what it does, at which level it is looked for (level:), and, where it takes more or another
# kind of scenario, how many and which (runs:, class:). A scenario that fails without the bug as
# well does not count. Ends with 1 when one gets away.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
seed=${SEED:-1}
via=${VIA:-nice}
place=$top/target/planted
tree=$place/tree
mkdir -p "$tree"
# What comes from elsewhere is shared with `make prove`; only crates that a patch touches, and those
# above them, are built anew each time. The binary has another name, so that one with a bug in it is
# never taken for the real one.
export CARGO_TARGET_DIR="$top/target" CARGO_INCREMENTAL=1
binary=$top/target/prove/forebay-planted
# The copy lies inside a repository that it is no part of.
export GIT_CEILING_DIRECTORIES="$place"

# The tree as it is, committed or not. What has not changed keeps its time, so that cargo knows.
fresh() {
    # A bug that was left planted may be in what was built: the originals' times would hide it.
    rm -rf "$place/next"
    mkdir -p "$place/next"
    (cd "$top" && tar -cf - --exclude ./crates/dst/corpus Cargo.toml Cargo.lock clippy.toml crates) |
        tar -xf - -C "$place/next"
    rm -rf "$tree"
    mv "$place/next" "$tree"
    mv "$tree/crates/dst/src/bin/forebay-prove" "$tree/crates/dst/src/bin/forebay-planted"
    # A bug that was left planted may be in what was built: the originals' times would hide it.
    if [ -e "$place/unfinished" ]; then
        find "$tree/crates" -name '*.rs' -exec touch {} +
    fi
    touch "$place/unfinished"
}

apply() {
    git -C "$tree" apply --recount "$@"
}

build() {
    (cd "$tree" && $via cargo build --quiet --profile prove -p forebay-dst --bin forebay-planted 2>"$place/build.log")
}

# Runs that fail, in order: level, class, how many to run, how many failures to go on after.
failing() {
    # shellcheck disable=SC2086 # a class is a list of options
    $via "$binary" --seed "$seed" --runs "$3" --level "$1" $2 --time 30m \
        --shrink 0 --keep-going "$4" --quiet 2>/dev/null |
        sed -n 's/^run \([0-9]*\): \([A-Za-z]*\).*/\1 \2/p' | sort -n
}

field() {
    sed -n "1,/^diff /s/^$1: //p" "$2"
}

names=$(cd "$here" && ls ./*.patch | sed 's|^\./||; s|\.patch$||')
fresh
if [ "${1:-}" = --check ]; then
    bad=0
    for name in $names; do
        apply --check "$here/$name.patch" || { echo "$name no longer applies"; bad=1; }
    done
    exit "$bad"
fi
build || { cat "$place/build.log"; exit 2; }
cp "$binary" "$place/without"

# Whether the scenario fails without any bug: then it says nothing.
innocent() {
    # shellcheck disable=SC2086 # a class is a list of options
    $via "$place/without" --seed "$seed" --run "$3" --level "$1" $2 --shrink 0 >/dev/null 2>&1
}

escaped=0
total=0
for name in ${*:-$names}; do
    patch=$here/$name.patch
    level=$(field level "$patch")
    class=$(field class "$patch")
    runs=$(field runs "$patch")
    runs=${runs:-${RUNS:-400}}
    total=$((total + 1))
    what="level $level${class:+ $class}"
    if ! apply "$patch"; then
        printf '%-32s the patch no longer applies\n' "$name"
        escaped=$((escaped + 1))
        continue
    fi
    if build; then
        first=$(failing "$level" "$class" "$runs" 6 | while read -r run kind; do
            innocent "$level" "$class" "$run" && { echo "$run $kind"; break; }
        done) || true
        if [ -n "$first" ]; then
            run=${first% *}
            printf '%-32s %-20s caught after %4d scenarios (%s)\n' \
                "$name" "$what" $((run + 1)) "${first#* }"
        else
            printf '%-32s %-20s GOT AWAY in %d scenarios\n' "$name" "$what" "$runs"
            escaped=$((escaped + 1))
        fi
    else
        printf '%-32s does not build\n' "$name"
        tail -n 5 "$place/build.log"
        escaped=$((escaped + 1))
    fi
    apply -R "$patch"
done
rm -f "$place/unfinished"
echo "$((total - escaped)) of $total planted bugs caught"
[ "$escaped" -eq 0 ]

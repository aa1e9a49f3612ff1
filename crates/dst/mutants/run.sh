#!/bin/sh
# Plants each bug of this folder in a copy of the tree and counts the scenarios until it is caught.
#
#   crates/dst/mutants/run.sh [NAME]...      all of them without a name
#   crates/dst/mutants/run.sh --list         their names
#   crates/dst/mutants/run.sh --check        only whether every patch still applies
#
# Environment:
#   SEED   root seed of the search (1)
#   RUNS   the scenarios that each bug may take, whatever its patch says (400, or what that says)
#   VIA    what runs the costly commands (nice)
#
# The first lines of a patch say what it does, at which level it is looked for (level:), and, where it
# takes more or another kind of scenario, how many and which (runs:, class:). A scenario that fails
# without the bug as well does not count. One run at a time: a second one is refused.
#
# Ends with 0 when all are caught (or all apply), with 1 when one gets away, does not apply or does
# not build, with 2 for wrong usage and when nothing could be measured.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
names=$(cd "$here" && ls ./*.patch | sed 's|^\./||; s|\.patch$||')

say() {
    echo "run.sh: $*" >&2
}

number() {
    case $2 in
        '' | *[!0-9]*)
            say "$1 must be a number, not '$2'"
            exit 2
            ;;
    esac
}

task=run
wanted=''
for word in "$@"; do
    case $word in
        -h | --help)
            sed -n '2,/^set -eu/s/^#\( \|$\)//p' "$0"
            exit 0
            ;;
        --list | --check) task=${word#--} ;;
        -*)
            say "unknown option '$word'; --help says what there is"
            exit 2
            ;;
        *)
            # Only what --list prints: a path or a pattern is no name.
            if ! printf '%s\n' "$names" | grep -Fqx -e "$word"; then
                say "no mutant is called '$word'; --list gives their names"
                exit 2
            fi
            wanted="$wanted $word"
            ;;
    esac
done
if [ "$task" != run ] && [ $# -gt 1 ]; then
    say "--$task stands alone"
    exit 2
fi
if [ "$task" = list ]; then
    printf '%s\n' "$names"
    exit 0
fi
if [ "$task" = check ]; then
    bad=0
    for name in $names; do
        git -C "$top" apply --recount --check "$here/$name.patch" || { echo "$name no longer applies"; bad=1; }
    done
    exit "$bad"
fi

seed=${SEED:-1}
via=${VIA:-nice}
number SEED "$seed"
[ -z "${RUNS:-}" ] || number RUNS "$RUNS"
place=$top/target/mutants
tree=$place/tree
mkdir -p "$place"
# Two at once would plant their bugs in one tree.
exec 9>"$place/lock"
if ! flock -n 9; then
    say "another run is under way here (it holds $place/lock)"
    exit 2
fi
# What comes from elsewhere is shared with `make prove`; only crates that a patch touches, and those
# above them, are built anew each time. The binary has another name, so that one with a bug in it is
# never taken for the real one.
export CARGO_TARGET_DIR="$top/target" CARGO_INCREMENTAL=1
binary=$top/target/prove/forebay-mutant
# The copy lies inside a repository that it is no part of.
export GIT_CEILING_DIRECTORIES="$place"

# The tree as it is, committed or not. What has not changed keeps its time, so that cargo knows.
fresh() {
    rm -rf "$place/next"
    mkdir -p "$place/next"
    (cd "$top" && tar -cf - --exclude ./crates/dst/corpus Cargo.toml Cargo.lock clippy.toml crates) |
        tar -xf - -C "$place/next"
    rm -rf "$tree"
    mv "$place/next" "$tree"
    mv "$tree/crates/dst/src/bin/forebay-prove" "$tree/crates/dst/src/bin/forebay-mutant"
    # The last mutant may still be in what was built: the originals' times would hide it.
    if [ -e "$place/touched" ]; then
        sort -u "$place/touched" | while read -r file; do
            [ ! -e "$tree/$file" ] || touch "$tree/$file"
        done
    fi
}

plant() {
    git -C "$tree" apply --recount "$here/$1.patch" || return 1
    sed -n 's|^+++ b/||p' "$here/$1.patch" >>"$place/touched"
}

build() {
    (cd "$tree" && $via cargo build --quiet --profile prove -p forebay-dst --bin forebay-mutant 2>"$place/build.log")
}

# The search: level, class, how many to run, failures after which it goes on. What it says is left in
# search.log.
search() {
    # shellcheck disable=SC2086 # a class is a list of options
    $via "$binary" --seed "$seed" --runs "$3" --level "$1" $2 --time 30m \
        --shrink 0 --keep-going "$4" --quiet >"$place/search.log" 2>"$place/search.err" || true
}

# Runs that failed, in order.
failing() {
    sed -n 's/^run \([0-9]*\): \([A-Za-z]*\).*/\1 \2/p' "$place/search.log" | sort -n
}

# Scenarios that the search ran; nothing when it came to no summary.
searched() {
    sed -n 's/^scenarios  *\([0-9]*\).*/\1/p' "$place/search.log"
}

field() {
    sed -n "1,/^diff /s/^$1: //p" "$2"
}

# Whether the scenario passes without any bug: if not it says nothing.
innocent() {
    # shellcheck disable=SC2086 # a class is a list of options
    $via "$place/without" --seed "$seed" --run "$3" --level "$1" $2 --shrink 0 >/dev/null 2>&1
}

fresh
build || { cat "$place/build.log"; exit 2; }
rm -f "$place/touched"
cp "$binary" "$place/without"

escaped=0
total=0
for name in ${wanted:-$names}; do
    patch=$here/$name.patch
    level=$(field level "$patch")
    class=$(field class "$patch")
    runs=$(field runs "$patch")
    runs=${RUNS:-${runs:-400}}
    total=$((total + 1))
    what="level $level${class:+ $class}"
    if ! plant "$name"; then
        printf '%-32s the patch no longer applies\n' "$name"
        escaped=$((escaped + 1))
        continue
    fi
    if build; then
        for on in 0 6; do
            search "$level" "$class" "$runs" "$on"
            first=$(failing | while read -r run kind; do
                innocent "$level" "$class" "$run" && { echo "$run $kind"; break; }
            done) || true
            # Only failures that are not the bug's make it go on.
            [ -z "$first" ] && [ -n "$(failing)" ] || break
        done
        ran=$(searched)
        if [ -n "$first" ]; then
            run=${first% *}
            printf '%-32s %-20s caught after %4d scenarios (%s)\n' \
                "$name" "$what" $((run + 1)) "${first#* }"
        elif [ -n "$ran" ]; then
            printf '%-32s %-20s GOT AWAY in %d scenarios\n' "$name" "$what" "$ran"
            escaped=$((escaped + 1))
        else
            printf '%-32s %-20s NOT MEASURED: the search ended without a summary\n' "$name" "$what"
            tail -n 5 "$place/search.err"
            escaped=$((escaped + 1))
        fi
    else
        printf '%-32s does not build\n' "$name"
        tail -n 5 "$place/build.log"
        escaped=$((escaped + 1))
    fi
    git -C "$tree" apply --recount -R "$patch"
done
echo "$((total - escaped)) of $total mutants caught"
[ "$escaped" -eq 0 ]

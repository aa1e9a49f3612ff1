#!/bin/sh
# Mutation tests: builds a copy of the tree with all patches of this folder, each behind a switch, and
# counts the scenarios until the search fails with one of them on.
#
#   crates/dst/mutants/run.sh [NAME]...      the named mutants; all without a name
#   crates/dst/mutants/run.sh --list         prints the names
#   crates/dst/mutants/run.sh --check        checks only that every patch applies
#   crates/dst/mutants/run.sh --quick        prints the names of those that few scenarios catch: at
#                                            most 100 from each root seed that was measured
#
# Environment:
#   SEED   root seed of the search (1)
#   RUNS   limit of scenarios for each mutant; overrides the patch's own limit
#   VIA    prefix for each costly command (nice)
#
# The header of a patch says what the mutant does and how to search for it: level: is the fault
# level, class: holds extra options of forebay-prove, runs: is the limit of scenarios (400), and
# caught: the measured numbers of scenarios until it was caught, from root seed 1 on (>34: not
# within 34). A scenario that fails with no mutant on as well does not count. A patch changes lines
# within functions. A second run at the same time is refused.
#
# Exit status: 0 when every mutant is caught (with --check: every patch applies); 1 when a mutant is
# not caught, or a patch does not apply or build; 2 for wrong usage, or when nothing was measured.
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
        --list | --check | --quick) task=${word#--} ;;
        -*)
            say "unknown option '$word'; try --help"
            exit 2
            ;;
        *)
            # A name must match --list exactly; paths and patterns are refused.
            if ! printf '%s\n' "$names" | grep -Fqx -e "$word"; then
                say "unknown mutant '$word'; try --list"
                exit 2
            fi
            wanted="$wanted $word"
            ;;
    esac
done
if [ "$task" != run ] && [ $# -gt 1 ]; then
    say "--$task takes no other argument"
    exit 2
fi
if [ "$task" = list ]; then
    printf '%s\n' "$names"
    exit 0
fi
if [ "$task" = quick ]; then
    for name in $names; do
        sed -n '1,/^diff /s/^caught: //p' "$here/$name.patch" | awk -v name="$name" '
            { for (i = 1; i <= NF; i++) if ($i !~ /^[0-9]+$/ || $i > 100) slow = 1; seen = 1 }
            END { if (seen && !slow) print name }'
    done
    exit 0
fi
if [ "$task" = check ]; then
    bad=0
    for name in $names; do
        git -C "$top" apply --recount --check "$here/$name.patch" || {
            echo "$name does not apply"
            bad=1
        }
    done
    exit "$bad"
fi

seed=${SEED:-1}
via=${VIA:-nice}
number SEED "$seed"
[ -z "${RUNS:-}" ] || number RUNS "$RUNS"
place=$top/target/mutants
mkdir -p "$place"
# Two runs at the same time would write the same tree.
exec 9>"$place/lock"
if ! flock -n 9; then
    say "another run is in progress (it holds $place/lock)"
    exit 2
fi
# The target folder is shared with `make prove`, so dependencies build once.
export CARGO_TARGET_DIR="$top/target"
(
    cd "$top"
    $via cargo build --quiet --profile prove --package forebay-mutate
    $via target/prove/forebay-mutate --patches "$here" >"$place/built"
) || exit 1
binary=$(sed -n 1p "$place/built")

# Searches. Arguments: number of the mutant, level, class, limit of scenarios, number of failures to
# pass over. The output is in search.log.
search() {
    # shellcheck disable=SC2086 # a class is a list of options
    FOREBAY_MUTANT="$1" $via "$binary" --seed "$seed" --runs "$4" --level "$2" $3 --time 30m \
        --shrink 0 --keep-going "$5" --quiet >"$place/search.log" 2>"$place/search.err" || true
}

# Prints the runs that failed, in order.
failing() {
    sed -n 's/^run \([0-9]*\): \([A-Za-z]*\).*/\1 \2/p' "$place/search.log" | sort -n
}

# Prints how many scenarios the search ran; nothing when the search printed no summary.
searched() {
    sed -n 's/^scenarios  *\([0-9]*\).*/\1/p' "$place/search.log"
}

field() {
    sed -n "1,/^diff /s/^$1: //p" "$2"
}

# True when the scenario passes with no mutant on. Otherwise its failure says nothing.
innocent() {
    # shellcheck disable=SC2086 # a class is a list of options
    FOREBAY_MUTANT=0 $via "$binary" --seed "$seed" --run "$3" --level "$1" $2 --shrink 0 >/dev/null 2>&1
}

escaped=0
total=0
for name in ${wanted:-$names}; do
    patch=$here/$name.patch
    number=$(sed -n "2,\$s/^\([0-9]*\) $name\$/\1/p" "$place/built")
    level=$(field level "$patch")
    class=$(field class "$patch")
    runs=$(field runs "$patch")
    runs=${RUNS:-${runs:-400}}
    total=$((total + 1))
    what="level $level${class:+ $class}"
    for on in 0 6; do
        search "$number" "$level" "$class" "$runs" "$on"
        first=$(failing | while read -r run kind; do
            innocent "$level" "$class" "$run" && { echo "$run $kind"; break; }
        done) || true
        # Search again only when every failure also occurs without the mutant.
        [ -z "$first" ] && [ -n "$(failing)" ] || break
    done
    ran=$(searched)
    if [ -n "$first" ]; then
        run=${first% *}
        printf '%-32s %-20s caught after %4d scenarios (%s)\n' \
            "$name" "$what" $((run + 1)) "${first#* }"
    elif [ -n "$ran" ]; then
        printf '%-32s %-20s NOT CAUGHT in %d scenarios\n' "$name" "$what" "$ran"
        escaped=$((escaped + 1))
    else
        printf '%-32s %-20s NOT MEASURED: the search ended without a summary\n' "$name" "$what"
        tail -n 5 "$place/search.err"
        escaped=$((escaped + 1))
    fi
done
echo "$((total - escaped)) of $total mutants caught"
[ "$escaped" -eq 0 ]

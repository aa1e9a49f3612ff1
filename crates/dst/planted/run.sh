#!/bin/sh
# Plants each bug of this folder in a copy of the tree and counts the scenarios until it is caught.
#
#   crates/dst/planted/run.sh [NAME]...      all of them without a name
#
# Environment: SEED (1), RUNS (400) scenarios at most for each. Ends with 1 when one gets away.
# A scenario that fails without any planted bug as well does not count.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
seed=${SEED:-1}
runs=${RUNS:-400}
tree=$top/target/planted/tree
mkdir -p "$top/target/planted"
export CARGO_TARGET_DIR="$top/target/planted/build" CARGO_PROFILE_DEV_DEBUG=0

fresh() {
    git -C "$top" worktree remove --force "$tree" 2>/dev/null || true
    git -C "$top" worktree prune
    git -C "$top" worktree add --quiet --force --detach "$tree" HEAD
}

build() {
    (cd "$tree" && nice cargo build --quiet -p forebay-dst --bin forebay-prove 2>"$top/target/planted/build.log")
}

# Numbers of the runs that fail, in order, at the level given.
failing() {
    "$CARGO_TARGET_DIR/debug/forebay-prove" --seed "$seed" --runs "$runs" --level "$1" --time 10m \
        --shrink 0 --keep-going "$2" --quiet 2>/dev/null | sed -n 's/^run \([0-9]*\): \([A-Za-z]*\).*/\1 \2/p' | sort -n
}

fresh
build || { cat "$top/target/planted/build.log"; exit 2; }
for level in crash within beyond; do
    failing "$level" 1000 >"$top/target/planted/known-$level"
    echo "without a bug, level $level: $(wc -l <"$top/target/planted/known-$level") of $runs scenarios fail"
done

names=${*:-$(cd "$here" && ls ./*.patch | sed 's|^\./||; s|\.patch$||')}
escaped=0
for name in $names; do
    patch=$here/$name.patch
    level=$(sed -n 's/^level: //p' "$patch")
    git -C "$tree" checkout --quiet --force HEAD
    if ! git -C "$tree" apply --recount "$patch"; then
        printf '%-32s the patch no longer applies\n' "$name"
        escaped=$((escaped + 1))
        continue
    fi
    if ! build; then
        printf '%-32s does not build\n' "$name"
        tail -n 5 "$top/target/planted/build.log"
        escaped=$((escaped + 1))
        continue
    fi
    first=$(failing "$level" 30 | while read -r run kind; do
        grep -q "^$run " "$top/target/planted/known-$level" || { echo "$run $kind"; break; }
    done)
    if [ -n "$first" ]; then
        run=${first% *}
        printf '%-32s level %-7s caught after %4d scenarios (%s)\n' "$name" "$level" $((run + 1)) "${first#* }"
    else
        printf '%-32s level %-7s GOT AWAY in %d scenarios\n' "$name" "$level" "$runs"
        escaped=$((escaped + 1))
    fi
done
git -C "$top" worktree remove --force "$tree"
[ "$escaped" -eq 0 ]

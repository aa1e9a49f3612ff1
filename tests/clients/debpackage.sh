#!/usr/bin/env bash
# The Debian package: lintian finds nothing, and a clean Debian root is after a purge what it was before
# the installation. The root is that of mmdebstrap, without anything of this machine.
# shellcheck disable=SC2016 # "$1" is for the inner shells
. "$(dirname "$0")/lib.sh"

need mmdebstrap dpkg-deb dpkg-shlibdeps lintian strip
need_root "a root of its own"
begin
# A library that the release of this machine has must do for the root as well.
RELEASE=$(. /etc/os-release; [ "$ID" = debian ] && echo "$VERSION_CODENAME")
[ -n "$RELEASE" ] || skip "this is not Debian"
run env DEB_LEVEL=0 "$ROOT/packaging/build-deb" "$FOREBAY" "$DIR"
DEB=$(cat "$DIR/.out")
lintian --allow-root --fail-on error,warning "$DEB" >"$DIR/lintian" 2>&1 || fail "$(cat "$DIR/lintian")"
[ ! -s "$DIR/lintian" ] || fail "lintian: $(cat "$DIR/lintian")"
[ "$(dpkg-deb -f "$DEB" Version)" = "$("$FOREBAY" --version | cut -d' ' -f2)" ] || fail "another version"

CLEAN=$DIR/root
mkdir "$CLEAN"
mmdebstrap --quiet --variant=minbase --include=systemd "$RELEASE" "$CLEAN" >"$DIR/.out" 2>&1 ||
    skip "no Debian root to be had: $(tail -n 1 "$DIR/.out")"
undo "umount '$CLEAN/proc'"
mount -t proc proc "$CLEAN/proc" || skip "no mounts"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot "$CLEAN" "$@"; }
# Everything but what dpkg and ldconfig keep for themselves, and accounts, which stay by Debian's policy.
contents() {
    (cd "$CLEAN" && find . -path ./proc -prune -o -path ./run -prune -o -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o \
        -path ./var/cache -prune -o \( -path './etc/group*' -o -path './etc/gshadow*' -o -path './etc/.pwd.lock' \) -prune -o \
        -printf '%p %y %m %U %l\n' | sort)
}
# Removing a package makes the folder for states of units.
mkdir -p "$CLEAN/var/lib/systemd"
contents >before
cp "$DEB" "$CLEAN/var/cache/forebay.deb"

# ---------------------------------------------------------------------------- installed

run inside dpkg -i /var/cache/forebay.deb
[ "$(inside forebay --version)" = "$("$FOREBAY" --version)" ] || fail "it does not run"
inside getent group forebay >/dev/null || fail "there is no group forebay"
for unit in multi-user.target.wants/forebay.service sockets.target.wants/forebay.socket; do
    [ -L "$CLEAN/etc/systemd/system/$unit" ] || fail "$unit is not enabled"
done
# Manual pages are looked for in the package, because this root leaves them out or not as it likes.
dpkg-deb -c "$DEB" >contents
for file in ./usr/share/man/man1/forebay-serve.1.gz ./usr/share/man/man7/forebay-properties.7.gz \
    ./usr/share/bash-completion/completions/forebay ./usr/share/zsh/vendor-completions/_forebay \
    ./usr/share/fish/vendor_completions.d/forebay.fish; do
    grep -q " $file\$" contents || fail "$file is not in the package"
done
inside systemd-analyze verify --man=no forebay.service forebay.socket forebay-attach@tank-vol0.service >"$DIR/.out" 2>&1 ||
    fail "units: $(cat "$DIR/.out")"
[ ! -s "$DIR/.out" ] || fail "units: $(cat "$DIR/.out")"
run inside forebay serve --check
# The examples of the file are right once they are no comments any more, but for certificates that are not there.
sed 's/^#\([a-z["]\)/\1/' "$CLEAN/etc/forebay/forebay.toml" >"$CLEAN/etc/forebay/all.toml"
refuse inside forebay serve --config /etc/forebay/all.toml --check
grep -q '/etc/forebay/tls/.*No such file' "$DIR/.out" || fail "the examples: $(cat "$DIR/.out")"
rm "$CLEAN/etc/forebay/all.toml"
truncate -s 64M "$CLEAN/srv/d0"
run inside forebay pool create p /srv/d0

# ---------------------------------------------------------------------------- again, removed, purged

echo 'pools = ["p"]' >>"$CLEAN/etc/forebay/forebay.toml"
run inside dpkg -i --force-confdef --force-confold /var/cache/forebay.deb
run inside dpkg -r forebay
[ ! -e "$CLEAN/usr/bin/forebay" ] || fail "the binary is there after the removal"
grep -q '^pools = ' "$CLEAN/etc/forebay/forebay.toml" || fail "the removal took the configuration"
[ -e "$CLEAN/var/lib/forebay/pools.json" ] || fail "the removal forgot the pools"
run inside dpkg -i /var/cache/forebay.deb
[ "$(inside forebay pool list -H -o name,health)" = "p	ONLINE" ] || fail "the pool is not there"
run inside forebay serve --check
run inside dpkg -P forebay
[ -s "$CLEAN/srv/d0" ] || fail "the purge took the data of a pool"
rm "$CLEAN/srv/d0"
contents >after
diff before after >left || fail "left by the purge: $(cat left)"

pass "lintian is content; a clean root has it, keeps its settings and pools, and after a purge nothing of it"

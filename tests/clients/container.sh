#!/usr/bin/env bash
# The container image: built, refused by a profile without io_uring in one line, and then a pool of files in it that
# a client outside writes to and reads.
. "$(dirname "$0")/lib.sh"
need buildah nbdcopy nbdinfo
need_root "containers"
begin
export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$DIR/storage.conf
printf '[storage]\ndriver = "vfs"\nrunroot = "%s"\ngraphroot = "%s"\n' "$DIR/run" "$DIR/images" >"$DIR/storage.conf"
run "$HERE/../../packaging/build-image" "$FOREBAY" forebay:test
# container NAME OPTION...: one with the libraries that a binary with a C library of the system needs; a static one has none.
container() {
    local name=$1 library
    shift
    run buildah from --name "$name" "$@" localhost/forebay:test
    ldd "$FOREBAY" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        run buildah copy -q "$name" "$library" "$library"
    done
}
container strict
buildah run strict -- /usr/bin/forebay pool create p /a >"$DIR/.out" 2>&1 && fail "io_uring is allowed by default"
grep -q 'io_uring is not available' "$DIR/.out" || fail "$(cat "$DIR/.out")"
say "a profile without io_uring is named"
container open --security-opt seccomp=unconfined
root=$(buildah mount open) || fail "no mount"
truncate -s 96M "$root/a" "$root/b"
inside() { buildah run open -- /usr/bin/forebay "$@"; }
run inside pool create p mirror /a /b
run inside volume create -V 16M p/v
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
inside serve --listen "tcp:127.0.0.1:$PORT" >"$DIR/serve.log" 2>&1 &
AT=nbd://127.0.0.1:$PORT/p/v
await 60 "the container serves: $DIR/serve.log" grep -q 'ready: serving p' "$DIR/serve.log"
undo "kill \$(sed -n 's/.*process //p' '$DIR/who')"
inside pool status p >"$DIR/status" 2>&1 || fail "$(cat "$DIR/status")"
grep -o 'process [0-9]*' "$DIR/status" >"$DIR/who"
head -c 16M /dev/urandom >"$DIR/image"
run nbdcopy "$DIR/image" "$AT"
run nbdcopy "$AT" "$DIR/back"
cmp "$DIR/image" "$DIR/back" || fail "the container gave back something else"
pass "built, refused in one line, and served from inside"

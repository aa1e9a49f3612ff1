# A small Debian guest under qemu (no KVM needed): kernel and modules out of Debian's package, busybox,
# and whatever programs a test wants. Sourced after lib.sh by the tests that need one.

# The modules that a guest loads, in this order, with their options.
MODULES=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk
    failover net_failover virtio_net nbd)

# need_guest [PACKAGE]: the kernel is the one that PACKAGE depends on. A folder GUEST_KERNEL with the
# files of a kernel package takes its place.
need_guest() {
    need qemu-system-x86_64 busybox dpkg-deb ldd strip
    [ "$(uname -m)" = x86_64 ] || skip "the guest is an amd64 one"
    has_kernel "${1:-linux-image-cloud-amd64}" "" || skip "$(cat "$DIR/.out")"
}

# has_kernel PACKAGE [SUITE]: sets KERNEL and GUEST; false if there is no such kernel, and says why in $DIR/.out.
# SUITE: another suite of Debian than this machine's, for newer kernels.
has_kernel() {
    local wanted=$1 suite=${2:-} package
    local -a apt=(-o APT::Sandbox::User=root)
    GUEST=${CARGO_TARGET_DIR:-$ROOT/target}/guest
    [ "$wanted$suite" = linux-image-cloud-amd64 ] || GUEST=$GUEST-$wanted${suite:+-$suite}
    if [ -n "${GUEST_KERNEL:-}" ]; then
        mkdir -p "$DIR/guest"
        ln -s "$GUEST_KERNEL" "$DIR/guest/root"
        GUEST=$DIR/guest
        KERNEL=$(find "$GUEST_KERNEL/" -name 'vmlinuz*' | head -n 1)
        [ -e "$KERNEL" ] || fail "there is no kernel in $GUEST_KERNEL"
        return
    fi
    find_kernel && return
    echo "there is no apt-get to fetch a kernel with" >"$DIR/.out"
    command -v apt-get >/dev/null || return
    mkdir -p "$GUEST"
    if [ -n "$suite" ]; then
        other_suite "$suite" >"$DIR/.out" 2>&1 || return
        apt+=(-o "Dir::Etc::sourcelist=$GUEST/apt/sources" -o Dir::Etc::sourceparts=/dev/null
            -o "Dir::State::lists=$GUEST/apt/lists" -o "Dir::Cache=$GUEST/apt")
        apt-get "${apt[@]}" -qq update >"$DIR/.out" 2>&1 || return
    fi
    package=$(apt-cache "${apt[@]}" depends "$wanted" 2>/dev/null | awk '$1 == "Depends:" && /linux-image-[0-9]/ { print $2; exit }')
    echo "there is no kernel package to be had" >"$DIR/.out"
    [ -n "$package" ] || return
    # Newer ones have the kernel and its modules in packages of their own.
    local -a parts
    mapfile -t parts < <(apt-cache "${apt[@]}" depends "$package" |
        sed -n 's/^ *Depends: \(linux-\(binary\|modules\)-.*\)/\1/p')
    (cd "$GUEST" && apt-get "${apt[@]}" download "$package" "${parts[@]}" || exit
        for part in *.deb; do dpkg-deb -x "$part" root.new || exit; done
        mv root.new root && rm -rf ./*.deb apt) >"$DIR/.out" 2>&1 || return
    find_kernel
}
find_kernel() { KERNEL=$(find "$GUEST/root" -name 'vmlinuz*' -type f 2>/dev/null | head -n 1) && [ -n "$KERNEL" ]; }

# other_suite SUITE: $GUEST/apt/sources, with the mirror that this machine's own suite comes from.
other_suite() {
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | sed -n '/debian$/{p;q}')
    [ -n "$mirror" ] || { echo "no mirror of Debian is configured"; return 1; }
    mkdir -p "$GUEST/apt/lists/partial" "$GUEST/apt/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$GUEST/apt/sources"
}

# make_guest PROGRAM...: $DIR/initrd with these programs, their libraries, and the script $DIR/main to run.
make_guest() {
    local root=$DIR/initrd.root program library module
    mkdir -p "$root"/{bin,dev,proc,sys,run,tmp,mnt,etc,modules}
    cp "$(command -v busybox)" "$root/bin/"
    # The same machine, as far as a pool's owner goes: after the cut its devices are imported here.
    [ -e /etc/machine-id ] && cp /etc/machine-id "$root/etc/"
    uname -n >"$root/etc/hostname"
    for program in "$@"; do
        cp "$program" "$root/bin/"
        strip "$root/bin/$(basename "$program")" 2>/dev/null
        ldd "$program" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    for module in "${MODULES[@]}"; do
        find "$GUEST/root/" -name "${module%% *}.ko" -exec cp {} "$root/modules/" \;
        find "$GUEST/root/" -name "${module%% *}.ko.xz" -exec cp {} "$root/modules/" \;
        echo "$module"
    done >"$root/modules/order"
    find "$root/modules" -name '*.xz' -exec xz -d {} +
    cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /run
mount -t tmpfs none /tmp
while read -r module options; do insmod "/modules/$module.ko" $options; done </modules/order
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
fi
hostname -F /etc/hostname
sh /main
echo "guest: the end"
poweroff -f
END
    chmod +x "$root/init"
    cp "$DIR/main" "$root/main"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$DIR/initrd"
    rm -rf "$root"
}

# The command line that boots it; devices and network are the caller's.
guest_command() {
    echo qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nodefaults -no-reboot \
        -display none -serial "file:$DIR/console" -kernel "$KERNEL" -initrd "$DIR/initrd" \
        -append "'console=ttyS0 quiet panic=-1 no_timer_check'"
}

# guest_main: $DIR/main, from standard input, after what guests that test `forebay attach` share.
guest_main() {
    cat >"$DIR/main" <<'END'
export FOREBAY_STATE_DIR=/run/forebay
fail() {
    echo "guest: FAIL $*"
    dmesg | tail -n 8
    tail -n 5 /tmp/*.log
    poweroff -f
}
ok() { echo "guest: ok $*"; }
# until_so SECONDS WHAT COMMAND...
until_so() {
    n=$(($1 * 5)) what=$2
    shift 2
    while [ $n -gt 0 ]; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
        n=$((n - 1))
    done
    fail "waited in vain: $what"
}
run() { "$@" >/tmp/run.log 2>&1 || fail "$*: $(cat /tmp/run.log)"; }
# refused WORDS COMMAND...: fails with one line that has the words.
refused() {
    why=$1
    shift
    "$@" >/tmp/run.log 2>&1 && fail "was accepted: $*"
    grep -q -- "$why" /tmp/run.log || fail "refused for another reason: $*: $(cat /tmp/run.log)"
    [ "$(wc -l </tmp/run.log)" = 1 ] || fail "more than one line: $*: $(cat /tmp/run.log)"
}
# start [PROGRAM...]: a server, started by PROGRAM; its process is $server.
start() {
    : >/tmp/serve.log
    "$@" forebay serve ${POOLS:-p} --listen tcp:127.0.0.1:10809 >/tmp/serve.log 2>&1 &
    server=$!
    until_so 120 "the server serves" grep -q 'ready: ' /tmp/serve.log
}
killed() {
    kill -9 $server
    until_so 60 "the server is gone" sh -c "! kill -0 $server"
}
# ended PID
ended() { until_so 120 "process $1 ends" sh -c "! kill -0 $1"; }
listed() { forebay volume list -H -o attached p/$1; }
is_listed() { [ "$(listed $1)" = "$2" ]; }
attribute() { cat /sys/block/${1#/dev/}/$2; }
has_sectors() { [ "$(attribute $1 size)" = $2 ]; }
# write NAME: files on /mnt, each synced, until /tmp/enough is there.
write() {
    n=0
    while [ ! -e /tmp/enough ]; do
        n=$((n + 1))
        # The name says what must be in it; ten files at a time are kept.
        yes "$1.$n" | head -n $((n * 37 % 3000 + 1)) | dd of=/mnt/$1.$((n % 10)) bs=64k conv=fsync 2>/dev/null ||
            break
        echo "$1.$n $((n * 37 % 3000 + 1))" >>/tmp/synced
    done
    echo "$1 is over" >>/tmp/synced
}
synced() { [ "$(wc -l </tmp/synced)" -ge $1 ]; }
# more WHEN: the writer goes on.
more() { until_so 200 "files are synced: $1" synced $(($(wc -l </tmp/synced) + 12)); }
# as_synced DEVICE: ends the writer of "file", and looks for the last of each ten names on the device.
as_synced() {
    touch /tmp/enough
    until_so 120 "the writer ends" grep -q 'is over' /tmp/synced
    rm /tmp/enough
    total=$(grep -c '^file\.' /tmp/synced)
    run umount /mnt
    echo 3 >/proc/sys/vm/drop_caches
    run /bin/e2fsck -fn $1
    run mount -t ext4 -o ro $1 /mnt
    grep '^file\.' /tmp/synced | tail -n 10 | while read -r name lines; do
        [ "$(yes "$name" | head -n "$lines" | sha256sum)" = "$(sha256sum </mnt/file.$((${name#file.} % 10)))" ] ||
            fail "$name was synced, and is not what was written"
    done
    run umount /mnt
    ok "$total files were synced meanwhile, the last ten are as they were written, and fsck is clean"
}
# verified DEVICE BLOCK_SIZES: fio writes and reads back, with its server killed in the middle.
verified() {
    fio --name=verify --filename=$1 --rw=randwrite --bs=$2 --size=24M --io_size=48M --direct=1 --ioengine=libaio \
        --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=7 >/tmp/fio.log 2>&1 &
    fio=$!
    sleep 1
    killed
    start
    wait $fio || fail "fio: $(cat /tmp/fio.log)"
    grep -q 'err= 0' /tmp/fio.log || fail "fio: $(cat /tmp/fio.log)"
    ok "fio verified what it wrote over a killed server"
}
# well: the pool is scrubbed without errors, and the server did not panic.
well() {
    run forebay pool scrub -w p
    forebay pool status p >/tmp/status.log
    grep -q 'No known data errors' /tmp/status.log || fail "$(cat /tmp/status.log)"
    grep -q 'panicked' /tmp/serve.log && fail "the server panicked"
}
END
    cat >>"$DIR/main"
}

# boot_guest FILE...: boots the guest with these files as disks, whose serial numbers are the files' names.
boot_guest() {
    local file
    local -a command
    : >"$DIR/console"
    eval "command=($(guest_command))"
    for file in "$@"; do
        command+=(-drive "file=$DIR/$file,if=none,id=$file,format=raw,cache=writeback"
            -device "virtio-blk-pci,drive=$file,serial=$file")
    done
    "${command[@]}" >"$DIR/qemu.out" 2>&1 &
    GUEST_PID=$!
    disown $GUEST_PID
    undo "kill -9 $GUEST_PID"
}

# guest_tells FILE...: boots the guest with these files as disks, waits until it has said "all is well", and shows
# what it found right.
guest_tells() {
    say "${KERNEL#*/root/}"
    boot_guest "$@"
    await 300 "the guest ends: $DIR/console" guest_is_over
    sed -n 's/^guest: ok //p' "$DIR/console" | tr -d '\r' | while read -r line; do say "$line"; done
    grep -q 'guest: all is well' "$DIR/console" || fail "$(tail -n 40 "$DIR/console"; cat "$DIR/qemu.out")"
}
guest_is_over() { ! lives $GUEST_PID || grep -q 'guest: FAIL\|guest: all is well' "$DIR/console"; }

# A small Debian guest under qemu (no KVM needed): kernel and modules out of Debian's package, busybox,
# and whatever programs a test wants. Sourced after lib.sh by the tests that need one.

# The modules that a guest loads, in this order, with their options.
MODULES=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk
    failover net_failover virtio_net nbd)

# need_guest [PACKAGE]: the kernel is the one that PACKAGE depends on. A folder GUEST_KERNEL with the
# files of a kernel package takes its place.
need_guest() {
    local wanted=${1:-linux-image-cloud-amd64}
    need qemu-system-x86_64 busybox dpkg-deb ldd strip
    [ "$(uname -m)" = x86_64 ] || skip "the guest is an amd64 one"
    GUEST=${CARGO_TARGET_DIR:-$ROOT/target}/guest
    [ "$wanted" = linux-image-cloud-amd64 ] || GUEST=$GUEST-$wanted
    if [ -n "${GUEST_KERNEL:-}" ]; then
        mkdir -p "$DIR/guest"
        ln -s "$GUEST_KERNEL" "$DIR/guest/root"
        GUEST=$DIR/guest
        KERNEL=$(find "$GUEST_KERNEL/" -name 'vmlinuz*' | head -n 1)
        [ -e "$KERNEL" ] || fail "there is no kernel in $GUEST_KERNEL"
        return
    fi
    KERNEL=$(echo "$GUEST"/root/boot/vmlinuz-*)
    [ -e "$KERNEL" ] && return
    command -v apt-get >/dev/null || skip "there is no apt-get to fetch a kernel with"
    local package
    package=$(apt-cache depends "$wanted" 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
    [ -n "$package" ] || skip "there is no kernel package to be had"
    mkdir -p "$GUEST"
    (cd "$GUEST" && apt-get -o APT::Sandbox::User=root download "$package" &&
        dpkg-deb -x "$package"*.deb root.new && mv root.new root && rm -f "$package"*.deb) \
        >"$DIR/.out" 2>&1 || skip "the kernel cannot be fetched: $(tail -n 1 "$DIR/.out")"
    KERNEL=$(echo "$GUEST"/root/boot/vmlinuz-*)
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

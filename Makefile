# Thin: each target is a command that can be typed as well.
#   make run      build, make a pool in ./forebay-data when there is none, serve it
#   make deb      a Debian package in target/deb, by dpkg's own tools
#   make release  an archive with a static binary, manual pages and units in target/release-archive
#   make symbols  a release binary and its debug information, apart, in target/symbols
#   make test     install the test tools (as root on Debian), then run every test
#   make check    format, lints, arrows, house rules, licenses, unit tests
#   make prove    search crashes and faults on simulated devices, for TIME=10m or another time
#   make prove-ci the part of that search that every change must pass (the second step of CI)
#   make mutants  a mutation run over the crates that a write passes, for ARGS="--minutes 30" or hours
#   make bench    measure on this machine; writes docs/benchmarks/
#   make bench-sleeping  the same with a client that sleeps while it waits (needs libnbd-dev)
#   make bench-fronts    NBD over both sockets and vhost-user, with processor time a request (needs libnbd-dev)
#   make bench-hybrid    slow disks alone, with a cache in memory, and with a cache device (root)
#   make bench-memory-log  a log in memory beside one on this disk, for an hour (root, nut-server)
#   make bench-objects   a pool in an object store beside a local one and beside its gateway (needs versitygw)
#   make bench-services  what snapshots, compression and de-duplication cost against off
#   make bench-many-snapshots  a volume with ten thousand snapshots (python3-libnbd)
#   make bench-overwrites  count what overwriting full pools of several sizes costs, simulated
CARGO ?= cargo
ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.PHONY: run build deb release image symbols test check prove prove-ci mutants bench bench-sleeping bench-fronts bench-hybrid bench-memory-log bench-services bench-many-snapshots bench-objects bench-overwrites bench-sim man clean

# The commit that results and pages name. Tests do not need it, and are not built anew for it.
build deb release image symbols: export FOREBAY_COMMIT ?= $(shell git describe --always --dirty --exclude '*' 2>/dev/null)

run:
	$(CARGO) run --release --package forebay-cli -- up $(ARGS)

build:
	$(CARGO) build --release --workspace

deb:
	$(CARGO) build --release --package forebay-cli
	packaging/build-deb "$(TARGET)/release/forebay" "$(TARGET)/deb"

release:
	CARGO="$(CARGO)" packaging/build-archive "$(TARGET)"

image: release
	packaging/build-image "$(TARGET)/$$(uname -m)-unknown-linux-gnu/release/forebay"

symbols:
	$(CARGO) build --profile symbols --package forebay-cli
	cd "$(TARGET)/symbols" && objcopy --only-keep-debug forebay forebay.debug
	cd "$(TARGET)/symbols" && objcopy --strip-debug --add-gnu-debuglink=forebay.debug forebay

test:
	@scripts/test-tools
	CARGO="$(CARGO)" scripts/rust-tests
	CARGO="$(CARGO)" scripts/python-module
	FOREBAY_BIN="$${CARGO_TARGET_DIR:-$$PWD/target}/debug/forebay" tests/clients/run

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --quiet --package forebay-python --features module --all-targets -- -D warnings
	$(CARGO) test --quiet --package forebay-cli --test arrows --test tidy
	@scripts/licences
	$(CARGO) test --quiet --workspace --lib
	CARGO="$(CARGO)" scripts/fuzz-seeds

prove:
	scripts/prove $(ARGS)

prove-ci:
	scripts/prove-ci

mutants:
	scripts/mutants $(ARGS)

bench:
	bench/run $(ARGS)

bench-sleeping:
	bench/sleeping-client $(ARGS)

bench-fronts:
	bench/fronts $(ARGS)

bench-hybrid:
	bench/hybrid $(ARGS)

bench-memory-log:
	bench/memory-log $(ARGS)

bench-objects:
	bench/objects $(ARGS)

bench-services:
	bench/services $(ARGS)

bench-many-snapshots:
	bench/many-snapshots $(ARGS)

bench-overwrites:
	bench/overwrites $(ARGS)

bench-sim:
	scripts/bench-sim $(ARGS)

man:
	$(CARGO) run --release --quiet --package forebay-cli -- man target/man1

clean:
	$(CARGO) clean

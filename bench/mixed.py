"""Loads of users: mixes through fio's NBD engine, and the tail latency of durable writes beside
other work of the pool. Each takes a Bench and returns plain data, as in measures.py."""

import json
import subprocess
import threading
import time

from harness import MIB, Failure, call, have, median

# By fio's NBD engine, with several connections. The order matters: random writes leave the data
# scattered in a pool that never overwrites in place.
SEQUENTIAL_READ = ["--rw=read", "--bs=1m", "--iodepth=8"]
MIXES = {
    "sequential read, 1M, QD8": SEQUENTIAL_READ,
    "random read, 4K, 8 × QD4": ["--rw=randread", "--bs=4k", "--iodepth=4", "--numjobs=8"],
    "70 % reads, 16K, 4 × QD16": [
        "--rw=randrw",
        "--rwmixread=70",
        "--bs=16k",
        "--iodepth=16",
        "--numjobs=4",
    ],
    "70 % reads, 4K, 4 × QD16": [
        "--rw=randrw",
        "--rwmixread=70",
        "--bs=4k",
        "--iodepth=16",
        "--numjobs=4",
    ],
    "sequential read, 1M, QD8, after these mixes": SEQUENTIAL_READ,
    "sequential write, 1M, QD8": ["--rw=write", "--bs=1m", "--iodepth=8"],
}
# A writer with four requests in flight, which measures latency.
WRITER = dict(fua=True, depth=4)


def fio_nbd(uri, options, seconds):
    said = call(
        "fio",
        "--name=mix",
        "--ioengine=nbd",
        "--uri=" + uri,
        "--size=512m",
        "--runtime=%dms" % (1000 * seconds),
        "--ramp_time=200ms",
        "--time_based",
        "--group_reporting",
        "--output-format=json",
        "--randrepeat=0",
        "--norandommap",
        "--refill_buffers",
        *options
    )
    # The engine prints text before the JSON document.
    job = json.loads(said[said.index("{") :])["jobs"][0]
    sides = [job["read"], job["write"]]
    return {
        "iops": sum(s["iops"] for s in sides),
        "mb_per_second": sum(s["bw_bytes"] for s in sides) / 1e6,
    }


def mixes(bench, uris, rounds, seconds):
    """Requests per second of each mix on each server, with interleaved rounds."""
    rows = {}
    for name, options in MIXES.items():
        runs = {}
        for _ in range(rounds):
            for title, uri in uris.items():
                runs.setdefault(title, []).append(fio_nbd(uri, options, seconds))
        rows[name] = {
            title: {
                "iops": median([r["iops"] for r in each]),
                "mb_per_second": median([r["mb_per_second"] for r in each]),
                "all": [r["iops"] for r in each],
            }
            for title, each in runs.items()
        }
    return rows


def tail(run):
    writes = run["writes"]
    return {
        "iops": run["iops"],
        "p50_us": writes["p50_us"],
        "p99_us": writes["p99_us"],
        "p999_us": writes["p99.9_us"],
        "p9999_us": writes["p99.99_us"],
        "max_us": writes["max_us"],
    }


class BackgroundLoad:
    """A second load on the same server, for the duration of the block."""

    def __init__(self, bench, uri, *words):
        self.words = [
            bench.forebay,
            "bench",
            "nbd",
            uri,
            "--json",
            "--overwrite",
            "--seconds",
            "60",
            *map(str, words),
        ]
        self.bench = bench

    def __enter__(self):
        self.process = subprocess.Popen(
            self.words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.bench.environment,
        )
        time.sleep(0.5)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class RepeatedCommands:
    """Repeats a sequence of pool commands, for the duration of the block."""

    def __init__(self, bench, *commands):
        self.bench = bench
        self.commands = commands
        self.over = threading.Event()
        self.failed = None
        self.times = 0

    def run(self):
        try:
            while not self.over.is_set():
                self.bench.command(*self.commands[self.times % len(self.commands)])
                self.times += 1
        except Failure as failure:
            self.failed = failure

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        time.sleep(0.2)
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.failed:
            raise self.failed


BESIDE_FILL = "a sequential fill, and its commits"
FILL = ("--pattern", "sequential", "--block-size", "1M", "--queue-depth", "4")


def tails(bench, seconds):
    """FUA writes of 4 KiB beside a fill, a scrub, a resilver, and the cleaner."""
    rows = {}
    data = [bench.sparse("tl%d" % i, 1024 * MIB) for i in range(4)]
    log = bench.written("tl-log", 256 * MIB)
    bench.pool("tl", ["raidz1"] + data, [log])
    for volume in ("v", "w"):
        bench.volume("tl/" + volume, 512 * MIB)
    server = bench.serve("tl")
    uri, other = server.uri("tl/v"), server.uri("tl/w")
    for each in (uri, other):
        bench.load(each, size=MIB, depth=4, sequential=True, count=512)

    def writer():
        return tail(bench.load(uri, seconds=seconds, seed=3, **WRITER))

    rows["nothing else"] = writer()
    with BackgroundLoad(bench, other, *FILL):
        rows[BESIDE_FILL] = writer()
    with RepeatedCommands(bench, ["pool", "scrub", "-w", "tl"]) as again:
        rows["a scrub"] = writer()
    rows["a scrub"]["times"] = again.times
    old, fresh = data[1], bench.sparse("tl-new", 1024 * MIB)
    with RepeatedCommands(
        bench,
        ["pool", "replace", "-f", "-w", "tl", old, fresh],
        ["pool", "replace", "-f", "-w", "tl", fresh, old],
    ) as again:
        rows["a resilver"] = writer()
    rows["a resilver"]["times"] = again.times
    server.stop()

    small = [bench.sparse("cl%d" % i, 192 * MIB) for i in range(4)]
    bench.pool(
        "cl", ["raid0"] + small, [bench.written("cl-log", 128 * MIB)], options=["dirty_limit=16M"]
    )
    server = bench.serve("cl")
    segments = bench.stats("cl")["segments"]
    capacity = (segments["free"] + segments["open"] + segments["full"]) * segments["segment_bytes"]
    volume = int(capacity * 0.85) >> 20 << 20
    bench.volume("cl/v", volume)
    uri = server.uri("cl/v")
    bench.load(uri, size=MIB, depth=4, sequential=True, count=volume // MIB)
    # Enough overwrites to keep the cleaner busy.
    bench.load(uri, depth=32, count=volume // 4096)
    rows["the cleaner, 85 % full"] = writer()
    with BackgroundLoad(bench, uri, "--queue-depth", 8):
        rows["the cleaner, 85 % full, and writes that need not be durable"] = writer()
    server.stop()
    return rows


def peer_tails(bench, uri, seconds):
    """The same writer on another server, alone and beside a fill of the same file."""
    rows = {"nothing else": tail(bench.load(uri, seconds=seconds, seed=3, **WRITER))}
    with BackgroundLoad(bench, uri, *FILL):
        rows[BESIDE_FILL] = tail(bench.load(uri, seconds=seconds, seed=3, **WRITER))
    return rows


def mixed(bench, rounds, seconds):
    """Mixes by fio, then tail latencies."""
    rounds = min(rounds, 3)
    data = [bench.sparse("mx%d" % i, 512 * MIB) for i in range(4)]
    bench.pool("mx", ["raidz1"] + data, [bench.written("mx-log", 128 * MIB)])
    bench.volume("mx/v", 512 * MIB)
    server = bench.serve("mx")
    uris = {"Forebay": server.uri("mx/v")}
    served = [server]
    if have("nbdkit"):
        served.append(bench.nbdkit("mxkit", "file", bench.written("mx-kit", 512 * MIB)))
        uris["nbdkit file (page cache)"] = served[-1].uri()
    if have("qemu-nbd"):
        served.append(bench.qemu_nbd("mxqemu", bench.written("mx-qemu", 512 * MIB), "raw"))
        uris["qemu-nbd raw, cache=none"] = served[-1].uri()
    for uri in uris.values():
        bench.load(uri, size=MIB, depth=4, sequential=True, count=512)
    # Forebay must read from the devices, not from memory.
    server.stop()
    served[0] = bench.serve("mx")
    result = {"tails": {}}
    if " nbd" in call("fio", "--enghelp").replace("\t", " ").replace("\n", " "):
        result["mixes"] = mixes(bench, uris, rounds, seconds / 2)
    if "nbdkit file (page cache)" in uris:
        result["tails"]["nbdkit file"] = peer_tails(
            bench, uris["nbdkit file (page cache)"], 2 * seconds
        )
    for server in served:
        server.stop()
    result["tails"]["Forebay"] = tails(bench, 2 * seconds)
    return result

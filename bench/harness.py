"""Servers, load generators and files that the measurements share.

A folder on the disk to measure and the release binary enter; figures leave. The harness ends every
server that it started, and removes the folder with all files at the end.
"""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20


class Failure(Exception):
    pass


def have(tool):
    return shutil.which(tool) is not None


def call(*command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Failure("%s\n%s%s" % (" ".join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


def median(values):
    return statistics.median(values) if values else None


def spread(values):
    """Smallest and largest value, which show the noise of a median."""
    return [min(values), max(values)] if values else None


def halves():
    """The processors in two parts that share none, for what must not wait for the other."""
    processors = sorted(os.sched_getaffinity(0))
    half = (len(processors) + 1) // 2
    if half == len(processors):
        raise Failure("two loads that do not share a processor need two of them")
    return set(processors[:half]), set(processors[half:])


def interrupts():
    """Device interrupts so far, by line and processor."""
    lines = [line.split() for line in open("/proc/interrupts")]
    processors = [int(name[3:]) for name in lines[0]]
    numbered = [line for line in lines[1:] if line[0].rstrip(":").isdigit()]
    return {line[0]: dict(zip(processors, map(int, line[1:]))) for line in numbered}


def disk_processor(folder):
    """The processor that takes the interrupts of the folder's disk, and runs what follows them."""
    with tempfile.NamedTemporaryFile(dir=folder) as out:
        out.write(bytes(MIB))
        out.flush()
        os.fsync(out.fileno())
        before = interrupts()
        for _ in range(500):
            os.pwrite(out.fileno(), os.urandom(4096), 0)
            os.fdatasync(out.fileno())
        after = interrupts()
    counts = [
        (after[line][processor] - seen, processor)
        for line, row in before.items()
        for processor, seen in row.items()
    ]
    return max(counts)[1]


@contextlib.contextmanager
def on(processors):
    """Processes that are started within run on these processors, or on this script's if None."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Bench:
    def __init__(self, forebay, base):
        self.forebay = str(forebay)
        self.folder = tempfile.mkdtemp(prefix="bench.", dir=base)
        # Socket paths must be short.
        self.sockets = tempfile.mkdtemp(prefix="fbb.", dir="/tmp")
        self.state = os.path.join(self.sockets, "state")
        self.environment = dict(os.environ, FOREBAY_STATE_DIR=self.state)
        self.servers = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def socket(self, name):
        return os.path.join(self.sockets, name)

    def close(self):
        for server in list(self.servers):
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    # ------------------------------------------------------------------ files

    def sparse(self, name, size):
        path = self.path(name)
        with open(path, "wb") as out:
            out.truncate(size)
        return path

    def written(self, name, size):
        """A file with every block allocated: later writes change no metadata of the file system."""
        path = self.path(name)
        call(
            "dd",
            "if=/dev/zero",
            "of=" + path,
            "bs=1M",
            "count=%d" % (size // MIB),
            "oflag=direct",
            "conv=fsync",
        )
        return path

    # ------------------------------------------------------------------ servers

    def command(self, *words):
        return call(self.forebay, *words, env=self.environment)

    def stats(self, pool):
        return json.loads(self.command("pool", "stats", pool, "--json"))["pools"][0]

    def pool(self, name, layout, logs=(), options=()):
        words = ["pool", "create", "-f"]
        for option in options:
            words += ["-o", option]
        self.command(*words, name, *layout, *(["log"] + list(logs) if logs else []))

    def volume(self, name, size):
        self.command("volume", "create", "-V", str(size), name)

    def serve(self, pool):
        return Server(
            self,
            pool,
            [self.forebay, "serve", pool, "--listen", "unix:" + self.socket(pool)],
            ready="ready: ",
        )

    def nbdkit(self, name, *plugin):
        return Server(self, name, ["nbdkit", "-f", "-U", self.socket(name)] + list(plugin))

    def qemu_nbd(self, name, path, kind):
        return Server(
            self,
            name,
            [
                "qemu-nbd",
                "-t",
                "-e",
                "64",
                "-f",
                kind,
                "--cache=none",
                "--aio=io_uring",
                "-k",
                self.socket(name),
                path,
            ],
        )

    # ------------------------------------------------------------------ loads

    def load(
        self,
        uri,
        *,
        size=4096,
        depth=1,
        connections=1,
        reads=0,
        fua=False,
        flush=False,
        seconds=1,
        warmup=0,
        sequential=False,
        span=None,
        count=None,
        rate=None,
        seed=1
    ):
        words = [
            self.forebay,
            "bench",
            "nbd",
            uri,
            "--json",
            "--block-size",
            size,
            "--queue-depth",
            depth,
            "--connections",
            connections,
            "--read-percent",
            reads,
            "--seed",
            seed,
        ]
        words += ["--overwrite"] if reads < 100 else []
        words += ["--count", count] if count else ["--seconds", max(1, round(seconds))]
        words += ["--warmup-seconds", warmup] if warmup and not count else []
        words += ["--rate", rate] if rate else []
        words += ["--fua"] if fua else []
        words += ["--flush-each"] if flush else []
        words += ["--pattern", "sequential"] if sequential else []
        words += ["--span", span] if span else []
        return json.loads(call(*words, env=self.environment))

    def fio(self, path, *options, seconds=1.0, warmup=0.2):
        """One run on a bare file, O_DIRECT and io_uring: rates, latency, processor time."""
        out = json.loads(
            call(
                "fio",
                "--name=raw",
                "--filename=" + path,
                "--ioengine=io_uring",
                "--direct=1",
                "--runtime=%g" % seconds,
                "--ramp_time=%g" % warmup,
                "--time_based",
                "--group_reporting",
                "--output-format=json",
                "--randrepeat=0",
                "--norandommap",
                "--refill_buffers",
                *options
            )
        )
        job = out["jobs"][0]
        side = job["write"] if job["write"]["total_ios"] else job["read"]
        percentiles = side["clat_ns"].get("percentile", {})
        took = lambda percent: percentiles.get("%.6f" % percent, 0) / 1000
        seconds = side["runtime"] / 1e3
        return {
            "iops": side["iops"],
            "mb_per_second": side["bw_bytes"] / 1e6,
            "p50_us": took(50),
            "p99_us": took(99),
            "p99_9_us": took(99.9),
            "seconds": seconds,
            "processor_seconds": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds,
        }


class Server:
    def __init__(self, bench, name, words, ready=None):
        self.bench = bench
        self.name = name
        path = bench.socket(name)
        if os.path.exists(path):
            os.unlink(path)
        self.log = bench.path("%s.log" % name)
        self.started = time.monotonic()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=bench.environment
            )
        bench.servers.append(self)
        while not self.up(ready, path):
            if self.process.poll() is not None or time.monotonic() - self.started > 60:
                raise Failure("%s does not serve: %s" % (name, open(self.log).read()))
            time.sleep(0.002)
        self.ready_seconds = time.monotonic() - self.started

    def up(self, ready, path):
        if ready is None:
            return os.path.exists(path)
        return any(ready in line for line in open(self.log))

    def uri(self, volume=""):
        return "nbd+unix:///%s?socket=%s" % (volume, self.bench.socket(self.name))

    def io(self):
        """The kernel's counts for this process: bytes written to and read from the disk."""
        lines = open("/proc/%d/io" % self.process.pid).read().split("\n")
        return {k: int(v) for k, v in (line.split(": ") for line in lines if line)}

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failure("%s does not stop" % self.name)
        self.bench.servers.remove(self)

    def kill(self):
        self.process.kill()
        self.process.wait()
        if self in self.bench.servers:
            self.bench.servers.remove(self)
        # io_uring may hold file locks shortly after the end of the process.
        time.sleep(0.3)


def conditions():
    cpu = "unknown"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
            break

    def first_line(*command):
        try:
            return call(*command).strip().split("\n")[0]
        except (Failure, FileNotFoundError):
            return "not installed"

    return {
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "load_average_before": os.getloadavg(),
        "fio": first_line("fio", "--version"),
        "nbdkit": first_line("nbdkit", "--version"),
        "qemu-nbd": first_line("qemu-nbd", "--version"),
    }

"""Processor profiles for the targets that the page reports as missed."""

import collections
import os
import subprocess

from harness import MIB, Failure, call

# The purpose of a sample: the first row with a kernel function in the sample's stack. Other kernel
# stacks are "other".
INTERRUPTS = "interrupts, device and timer"
IN_KERNEL = [
    (INTERRUPTS, ("handle_softirqs", "asm_common_interrupt", "asm_sysvec")),
    ("sending", ("sock_sendmsg", "__sys_sendto", "io_send", "sock_write_iter", "__sys_sendmsg")),
    ("receiving", ("sock_recvmsg", "__sys_recvfrom", "io_recv", "sock_read_iter")),
    ("submitting to the device", ("io_submit_sqes",)),
    (
        "taking completions",
        ("__io_run_local_work", "io_run_local_work", "tctx_task_work", "io_cqring_overflow"),
    ),
    (
        "going to sleep and waking",
        ("schedule", "io_cqring_wait", "do_sched_yield", "__x64_sys_sched_yield"),
    ),
]
IN_PROGRAM = [
    ("checksums", ("crc_fast", "crc32", "block_sum")),
    ("copying", ("memmove", "memcpy", "memset")),
    ("memory", ("mi_", "malloc", "free")),
]


class Recording:
    """A recording by perf for two seconds, of one process or of all."""

    def __init__(self, path, *whose):
        self.path = path
        self.process = subprocess.Popen(
            ["perf", "record", "-q", "-F", "999", "-g", "-o", path, *whose, "--", "sleep", "2"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def functions(self, *which):
        """The functions with most samples."""
        self.process.wait()
        try:
            text = call(
                "perf",
                "report",
                "-i",
                self.path,
                "--no-children",
                "-g",
                "none",
                "--stdio",
                "--percent-limit",
                "1",
                "--sort",
                "dso,symbol",
                *which
            )
        except Failure as failure:
            return [str(failure).split("\n")[-1]]
        lines = [
            " ".join(line.split())
            for line in text.split("\n")
            if line.strip() and not line.startswith("#")
        ]
        return lines[:18]

    def purposes(self, server, client):
        """Percent of one processor by purpose: for the process id `server`, for programs named
        `client`, for other processes, and for idle processors."""
        self.process.wait()
        text = call("perf", "script", "-i", self.path, "-F", "comm,pid,ip,sym,dso")
        counts, everything = collections.defaultdict(collections.Counter), 0
        for sample in text.split("\n\n"):
            lines = sample.strip().split("\n")
            if not lines[0].strip():
                continue
            everything += 1
            name, pid = lines[0].rsplit(None, 1)
            what = purpose([line.split(None, 1)[-1] for line in lines[1:]])
            if int(pid) == server:
                owner = "server"
            elif int(pid) == 0:
                # An interrupt may also hit an idle processor.
                owner = "others" if what == INTERRUPTS else "idle"
            else:
                owner = "client" if name.strip() == client[:15] else "others"
            counts[owner][what] += 1
        share = 100.0 * os.cpu_count() / max(everything, 1)
        return {
            owner: {what: number * share for what, number in each.items()}
            for owner, each in counts.items()
        }


def purpose(stack):
    if not stack:
        return "other"
    kernel = [frame for frame in stack if "[kernel" in frame or "[guest" in frame]
    for name, marks in IN_KERNEL if kernel else IN_PROGRAM:
        if any(mark in frame for frame in kernel or stack[:1] for mark in marks):
            return name
    return "other of the kernel" if kernel else "the program itself"


def served(bench):
    """A server of a pool with one log device, filled and imported again."""
    data = [bench.sparse("pf%d" % i, 512 * MIB) for i in range(4)]
    bench.pool("pf", ["raidz1"] + data, [bench.written("pf-log", 256 * MIB)])
    bench.volume("pf/v", 512 * MIB)
    server = bench.serve("pf")
    bench.load(server.uri("pf/v"), size=MIB, depth=4, sequential=True, count=512, warmup=0)
    server.stop()
    return bench.serve("pf")


def sync_writes(bench):
    """The server's functions with most samples, under FUA writes at QD 1 and 32."""
    server = served(bench)
    out = {}
    for name, depth in (("FUA QD1", 1), ("FUA QD32", 32)):
        recording = Recording(bench.path("perf.data"), "-p", str(server.process.pid))
        run = bench.load(server.uri("pf/v"), fua=True, depth=depth, seconds=3)
        out[name] = {"iops": run["iops"], "lines": recording.functions()}
    server.stop()
    return out


def reads(bench):
    """Processor use of server, client and others while 32 random reads are in flight. None if perf
    may not record all processes."""
    server = served(bench)
    recording = Recording(bench.path("perf.data"), "-a", "-e", "cpu-clock")
    run = bench.load(server.uri("pf/v"), reads=100, depth=32, seconds=3)
    try:
        out = {
            "iops": run["iops"],
            "purposes": recording.purposes(server.process.pid, os.path.basename(bench.forebay)),
            "lines": recording.functions("--pid", str(server.process.pid)),
        }
    except Failure as failure:
        print("skip the profile of reads: %s" % str(failure).strip().split("\n")[-1], flush=True)
        out = None
    server.stop()
    return out

"""Where the server's time goes, for the page's rows that miss their target."""
import subprocess

from harness import MIB, Failure, call


def sync_writes(bench):
    """perf over the server while it takes FUA writes at QD 1 and 32; the heaviest functions."""
    data = [bench.sparse("pf%d" % i, 512 * MIB) for i in range(4)]
    log = bench.written("pf-log", 256 * MIB)
    bench.pool("pf", ["raidz1"] + data, [log])
    bench.volume("pf/v", 512 * MIB)
    server = bench.serve("pf")
    bench.load(server.uri("pf/v"), size=MIB, depth=4, sequential=True, count=512, warmup=0)
    out = {}
    for name, depth in (("FUA QD1", 1), ("FUA QD32", 32)):
        record = bench.path("perf.data")
        perf = subprocess.Popen(["perf", "record", "-q", "-F", "999", "-g", "-o", record,
                                 "-p", str(server.process.pid), "--", "sleep", "2"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run = bench.load(server.uri("pf/v"), fua=True, depth=depth, seconds=3)
        perf.wait()
        try:
            text = call("perf", "report", "-i", record, "--no-children", "-g", "none", "--stdio",
                        "--percent-limit", "1", "--sort", "dso,symbol")
            lines = [" ".join(line.split()) for line in text.split("\n")
                     if line.strip() and not line.startswith("#")]
        except Failure as failure:
            lines = [str(failure).split("\n")[-1]]
        out[name] = {"iops": run["iops"], "lines": lines[:18]}
    server.stop()
    return out

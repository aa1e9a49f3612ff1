"""The measurements. Each takes a Bench and the number of rounds and returns plain data; rounds
of all subjects are interleaved, so that noise of the machine affects all of them."""

import math
import os
import subprocess
import time

from harness import MIB, Failure, have, median, spread

LOADS = {
    "FUA QD1": dict(fua=True, depth=1),
    "FUA QD32": dict(fua=True, depth=32),
    "32 x (write + FLUSH)": dict(flush=True, connections=32, depth=1),
}


def summary(runs, key="iops"):
    values = [run[key] for run in runs]
    return {"median": median(values), "spread": spread(values)}


def p99(run):
    for kind in ("writes", "reads"):
        if run.get(kind):
            return run[kind]["p99_us"]
    return run.get("p99_us")


def fold(runs):
    return {
        "iops": median([r["iops"] for r in runs]),
        "iops_spread": spread([r["iops"] for r in runs]),
        "mb_per_second": median([r["mb_per_second"] for r in runs]),
        "p99_us": median([p99(r) for r in runs if p99(r) is not None] or [0]),
    }


def sync_writes(bench, rounds, seconds):
    """Durable 4 KiB writes: Forebay, other servers, the bare log file, and the ceiling."""
    size = 512 * MIB
    data = {
        name: [bench.sparse(name + str(i), size) for i in range(4)] for name in ("ma", "on", "no")
    }
    log = 256 * MIB
    mirrored = [bench.written("ma-log%d" % i, log) for i in range(2)]
    alone = bench.written("on-log", log)
    raw = bench.written("raw", log)
    served = []
    subjects = {}

    def forebay(name, title, logs):
        bench.pool(name, ["raidz1"] + data[name], logs)
        bench.volume(name + "/v", 512 * MIB)
        server = bench.serve(name)
        served.append(server)
        subjects[title] = server.uri(name + "/v")

    forebay("on", "Forebay, one log device", [alone])
    forebay("ma", "Forebay, mirrored log", ["mirror"] + mirrored)
    forebay("no", "Forebay, no log device", [])
    if have("nbdkit"):
        backing = bench.written("nbdkit-file", 512 * MIB)
        server = bench.nbdkit("kitfile", "file", backing)
        served.append(server)
        subjects["nbdkit file"] = server.uri()
    if have("qemu-nbd"):
        backing = bench.written("qemu-raw", 512 * MIB)
        server = bench.qemu_nbd("qemuraw", backing, "raw")
        served.append(server)
        subjects["qemu-nbd raw, cache=none"] = server.uri()
        from harness import call

        image = bench.path("qemu.qcow2")
        call("qemu-img", "create", "-f", "qcow2", "-o", "preallocation=metadata", image, "512M")
        server = bench.qemu_nbd("qcow", image, "qcow2")
        served.append(server)
        subjects["qemu-nbd qcow2, cache=none"] = server.uri()
    if have("nbdkit"):
        server = bench.nbdkit("kitnull", "null", "512M")
        served.append(server)
        subjects["nbdkit null (ceiling)"] = server.uri()
    # Every block of each subject is written once before, so that allocation is not measured.
    for title, uri in subjects.items():
        bench.load(uri, size=MIB, depth=4, sequential=True, count=512, warmup=0)
    fio_loads = {
        "FUA QD1": ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--sync=dsync"],
        "FUA QD32": ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--sync=dsync"],
        "32 x (write + FLUSH)": [
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=1",
            "--numjobs=32",
            "--fdatasync=1",
        ],
    }
    runs = {}
    load_averages = []
    for turn in range(rounds):
        load_averages.append(os.getloadavg()[0])
        for load, options in LOADS.items():
            one = bench.fio(raw, *fio_loads[load], seconds=seconds)
            runs.setdefault("bare log file, O_DIRECT O_DSYNC", {}).setdefault(load, []).append(one)
            for title, uri in subjects.items():
                one = bench.load(uri, seconds=seconds, seed=turn + 1, **options)
                runs.setdefault(title, {}).setdefault(load, []).append(one)
    stats = {name: bench.stats(name)["since_import"] for name in ("on", "ma", "no")}
    for server in served:
        server.stop()
    return {
        "rows": {
            title: {load: fold(r) for load, r in loads.items()} for title, loads in runs.items()
        },
        "load_average": [min(load_averages), max(load_averages)],
        "log": {
            name: {
                "writes": s["log_writes"]["count"],
                "bytes": s["log_writes"]["bytes"],
                "sequential": s["log_sequential_writes"] / max(1, s["log_writes"]["count"]),
            }
            for name, s in stats.items()
        },
    }


def streams(bench, rounds, seconds):
    """Sequential fill, then random reads and writes of two sizes at three depths."""
    size = 512 * MIB
    data = [bench.sparse("st%d" % i, size) for i in range(4)]
    logs = [bench.written("st-log%d" % i, 128 * MIB) for i in range(2)]
    bench.pool("st", ["raidz1"] + data, ["mirror"] + logs)
    bench.volume("st/v", size)
    raw = bench.written("st-raw", size)
    server = bench.serve("st")
    rows = {}
    for depth in (1, 10, 100):
        fills = [
            bench.load(
                server.uri("st/v"),
                size=128 << 10,
                depth=depth,
                sequential=True,
                count=size // (128 << 10),
                warmup=0,
            )
            for _ in range(rounds)
        ]
        plain = [
            bench.fio(raw, "--rw=write", "--bs=128k", "--iodepth=%d" % depth, seconds=seconds)
            for _ in range(rounds)
        ]
        rows["sequential fill 128K QD%d" % depth] = {
            "Forebay": fold(fills),
            "bare file": fold(plain),
        }
    # Reads must come from the devices, not from memory.
    server.stop()
    server = bench.serve("st")
    subjects = {"Forebay": server.uri("st/v")}
    kit = None
    if have("nbdkit"):
        kit = bench.nbdkit("stkit", "file", raw)
        subjects["nbdkit file (page cache)"] = kit.uri()
    plan = [
        (reads, block, depth)
        for reads in (100, 0)
        for block in (4096, 65536)
        for depth in (1, 10, 100)
    ] + [(100, 4096, 32)]
    plan.sort(key=lambda p: -p[0])
    for reads, block, depth in plan:
        name = "random %s %dK QD%d" % ("read" if reads else "write", block >> 10, depth)
        runs = {}
        for turn in range(rounds):
            kind = "randread" if reads else "randwrite"
            runs.setdefault("bare file", []).append(
                bench.fio(
                    raw, "--rw=" + kind, "--bs=%d" % block, "--iodepth=%d" % depth, seconds=seconds
                )
            )
            for title, uri in subjects.items():
                runs.setdefault(title, []).append(
                    bench.load(
                        uri, size=block, depth=depth, reads=reads, seconds=seconds, seed=turn + 7
                    )
                )
        rows[name] = {title: fold(r) for title, r in runs.items()}
    server.stop()
    if kit:
        kit.stop()
    return {"rows": rows}


def lambert_w(x):
    """The principal branch of the Lambert W function, by Newton's method; x in (-1/e, 0)."""
    w = -0.5 if x < -0.3 else x
    for _ in range(200):
        e = math.exp(w)
        step = (w * e - x) / (e * (w + 1))
        w -= step
        if abs(step) < 1e-14:
            break
    return w


def greedy(alpha):
    """Write amplification of greedy cleaning under uniform overwrites, for segments of many blocks
    (the limit is the same as for first-in first-out): alpha / (alpha + W(-alpha exp(-alpha)))."""
    return alpha / (alpha + lambert_w(-alpha * math.exp(-alpha)))


def media(before, after):
    names = ("data", "parity", "metadata", "cleaning", "padding", "repair", "log")
    return {n: after["media"][n] - before["media"][n] for n in names}


def interval(bench, server, pool, load, drain=True):
    """One interval of load, counted by the kernel and by the pool. With `drain` it ends when no
    dirty data is in memory; an interval much longer than a commit group needs no drain."""
    io_before, before = server.io(), bench.stats(pool)["since_import"]
    load()
    # Dirty data in memory belongs to this interval: wait until it is written.
    deadline = time.monotonic() + 30
    while drain and bench.stats(pool)["dirty_bytes"] and time.monotonic() < deadline:
        time.sleep(0.2)
    io_after, after = server.io(), bench.stats(pool)["since_import"]
    host = after["writes"]["bytes"] - before["writes"]["bytes"]
    parts = media(before, after)
    total = sum(parts.values())
    return {
        "host_bytes": host,
        "kernel": (io_after["write_bytes"] - io_before["write_bytes"]) / host,
        "stats": total / host,
        "without_log": (total - parts["log"]) / host,
        "parts": {k: v / host for k, v in parts.items()},
    }


def fold_intervals(runs):
    return {
        "kernel": median([r["kernel"] for r in runs]),
        "kernel_spread": spread([r["kernel"] for r in runs]),
        "stats": median([r["stats"] for r in runs]),
        "without_log": median([r["without_log"] for r in runs]),
        "parts": {k: median([r["parts"][k] for r in runs]) for k in runs[0]["parts"]},
        "host_mib": sum(r["host_bytes"] for r in runs) / MIB,
    }


def amplification(bench, rounds, _seconds):
    """Device bytes per byte of the client: 16 devices, 12 % full, after a fill."""
    size = 256 * MIB
    rows = {}
    for layout, parity in (("raid0", 0), ("raidz1", 1), ("raidz2", 2), ("raidz3", 3)):
        data = [bench.sparse("wa%d" % i, size) for i in range(16)]
        bench.pool("wa", [layout] + data, options=["txg_timeout=1"])
        volume = int(16 * size * (16 - parity) / 16 * 0.12) >> 16 << 16
        bench.volume("wa/v", volume)
        server = bench.serve("wa")
        uri = server.uri("wa/v")
        bench.load(
            uri, size=128 << 10, depth=8, sequential=True, count=volume // (128 << 10), warmup=0
        )
        # The dirty data of the fill is not part of the measured interval.
        interval(
            bench, server, "wa", lambda: bench.load(uri, depth=10, count=1024, warmup=0, seed=99)
        )
        for block in (4096, 65536):
            runs = []
            for turn in range(rounds):
                runs.append(
                    interval(
                        bench,
                        server,
                        "wa",
                        lambda: bench.load(
                            uri,
                            size=block,
                            depth=10,
                            count=96 * MIB // block,
                            warmup=0,
                            seed=turn + 1,
                        ),
                    )
                )
            row = fold_intervals(runs)
            row["ideal"] = 16 / (16 - parity)
            rows["%s %dK" % (layout, block >> 10)] = row
        server.stop()
        bench.command("pool", "destroy", "wa")
        for path in data:
            os.unlink(path)
    return {"rows": rows}


def overwrites(bench, _rounds, _seconds, times=10):
    """Cost of cleaning: uniform 4 KiB overwrites of ten times the volume, and the formula."""
    size = 192 * MIB
    rows = {}
    for percent in (50, 70, 85):
        data = [bench.sparse("ow%d" % i, size) for i in range(4)]
        # An overwrite frees a block when its group commits. A small pool needs small groups,
        # because overwritten blocks of an open group count as live. With even smaller groups, the
        # padding at the end of each group costs more.
        bench.pool("ow", ["raid0"] + data, options=["dirty_limit=8M"])
        server = bench.serve("ow")
        segments = bench.stats("ow")["segments"]
        capacity = (segments["free"] + segments["open"] + segments["full"]) * segments[
            "segment_bytes"
        ]
        volume = int(capacity * percent / 100) >> 20 << 20
        row = {"capacity_mib": capacity / MIB, "volume_mib": volume / MIB}
        rows["%d %%" % percent] = row
        try:
            bench.volume("ow/v", volume)
            uri = server.uri("ow/v")
            bench.load(
                uri, size=128 << 10, depth=8, sequential=True, count=volume // (128 << 10), warmup=0
            )
            runs = []
            began = time.monotonic()
            for turn in range(times):
                runs.append(
                    interval(
                        bench,
                        server,
                        "ow",
                        lambda: bench.load(
                            uri, depth=32, count=volume // 4096, warmup=0, seed=turn + 1
                        ),
                        drain=False,
                    )
                )
            after = bench.stats("ow")["segments"]
            # The first half approaches the steady state.
            row.update(fold_intervals(runs[times // 2 :]))
            row["each"] = [r["stats"] for r in runs]
            row["seconds"] = time.monotonic() - began
            row["greedy_all"] = greedy(capacity / volume)
            taken = after["full"] * after["segment_bytes"]
            row["taken_mib"] = taken / MIB
            row["greedy_taken"] = greedy(taken / volume) if taken > volume else None
        except Failure as failure:
            row["failed"] = str(failure).strip().split("\n")[-1]
        server.stop()
        bench.command("pool", "destroy", "ow")
        for path in data:
            os.unlink(path)
    return {"rows": rows}


def many_volumes(bench, rounds, seconds):
    """The same 64 writers on one volume and on 64 volumes, which share one log stream."""
    count = 64
    data = [bench.sparse("mv%d" % i, 512 * MIB) for i in range(4)]
    log = bench.written("mv-log", 256 * MIB)
    bench.pool("mv", ["raidz1"] + data, [log])
    bench.volume("mv/one", 512 * MIB)
    for i in range(count):
        bench.volume("mv/v%d" % i, 8 * MIB)
    server = bench.serve("mv")

    def together(volumes):
        words = [
            bench.forebay,
            "bench",
            "nbd",
            "--json",
            "--overwrite",
            "--fua",
            "--queue-depth",
            "1",
            "--seconds",
            "2",
            "--warmup-seconds",
            "1",
        ]
        started = [
            subprocess.Popen(
                words + ["--seed", str(i + 1), server.uri("mv/" + v)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=bench.environment,
                text=True,
            )
            for i, v in enumerate(volumes)
        ]
        import json

        outs = [p.communicate() for p in started]
        for process, (_, err) in zip(started, outs):
            if process.returncode:
                raise Failure(err)
        return sum(json.loads(out)["iops"] for out, _ in outs)

    names = {"1 volume": ["one"] * count, "64 volumes": ["v%d" % i for i in range(count)]}
    rows = {name: {"iops": [], "sequential": []} for name in names}
    for _ in range(rounds):
        for name, volumes in names.items():
            before = bench.stats("mv")["since_import"]
            rows[name]["iops"].append(together(volumes))
            after = bench.stats("mv")["since_import"]
            writes = after["log_writes"]["count"] - before["log_writes"]["count"]
            sequential = after["log_sequential_writes"] - before["log_sequential_writes"]
            rows[name]["sequential"].append(sequential / max(1, writes))
    server.stop()
    return {
        "rows": {
            n: {
                "iops": median(r["iops"]),
                "iops_spread": spread(r["iops"]),
                "sequential": median(r["sequential"]),
            }
            for n, r in rows.items()
        }
    }


def import_time(bench, rounds, seconds):
    """Time from a start after kill -9, with much data in the log, until the volumes are served."""
    size = 512 * MIB
    data = [bench.sparse("im%d" % i, size) for i in range(4)]
    log = bench.written("im-log", size)
    # A group that stays open for a long time fills the log.
    bench.pool("im", ["raidz1"] + data, [log], options=["txg_timeout=600", "dirty_limit=1G"])
    bench.volume("im/v", 300 * MIB)
    runs = []
    read = []
    for turn in range(rounds):
        server = bench.serve("im")
        bench.load(
            server.uri("im/v"),
            size=32 << 10,
            depth=32,
            fua=True,
            warmup=0,
            count=240 * MIB // (32 << 10),
            seed=turn + 1,
        )
        used = bench.stats("im")["log_used_bytes"]
        server.kill()
        read.append(
            bench.fio(log, "--rw=read", "--bs=1m", "--iodepth=4", seconds=seconds)["mb_per_second"]
        )
        server = bench.serve("im")
        stats = bench.stats("im")
        last = stats["last_import"]
        # A replay also reads the ring behind the last frame, and searches it for frames that
        # contradict the end of the log.
        read_bytes = stats["devices"][str(log)]["read_bytes"]
        runs.append(
            {"log_used": used, "ready": server.ready_seconds, "read_bytes": read_bytes, **last}
        )
        server.stop()
    return {
        "ready_seconds": median([r["ready"] for r in runs]),
        "import_seconds": median([r["seconds"] for r in runs]),
        "replay_seconds": median([r["replay_seconds"] for r in runs]),
        "log_mib": median([r["log_bytes"] for r in runs]) / MIB,
        "records": median([r["log_records"] for r in runs]),
        "read_mib": median([r["read_bytes"] for r in runs]) / MIB,
        "replay_mb_per_second": median(
            [r["read_bytes"] / 1e6 / max(1e-9, r["replay_seconds"]) for r in runs]
        ),
        "device_read_mb_per_second": median(read),
        "runs": runs,
    }

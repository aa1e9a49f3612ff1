#!/usr/bin/env python3
"""States of a server that never was, so that pictures of the web page are the same each time.

    webstates.py serve PAGE HEADERS PORTFILE    shows the page with each state, at /NAME/
    webstates.py missing STATE.json             prints fields of the states that a real server lacks

HEADERS has the headers of the real server, one a line: the page must be as good behind them.
"""

import http.server
import itertools
import json
import math
import sys

NOW = 1_800_000_000
FIELDS = (
    "time reads writes durable flushes read_bytes write_bytes log_bytes data_bytes parity_bytes cleaning_bytes "
    "other_bytes durable_p50 durable_p99 flush_p50 flush_p99 read_p50 read_p99 dirty log_used"
).split()
GIB = 1 << 30


def point(time, load):
    wave = 1 + 0.35 * math.sin(time / 37) + 0.15 * math.sin(time / 5.3)
    swell = max(0, math.sin(time / 61)) ** 2
    writes, reads = 5200 * wave * load, 8400 * (2 - wave) * load
    written, cleaned = writes * 16384, writes * 3000 * swell
    slow = 4 if time % 97 < 4 else 1
    return [time, reads, writes, writes * 0.6, 40 * wave * load, reads * 12000, written, written * 0.62, written,
            written / 3, cleaned, written * 0.02, 92 * wave, 310 * slow, 140 * wave, 900 * slow if time % 3 else None,
            61 * wave, 480 * slow, 0.4 * GIB * wave * load, 0.9 * GIB * load]


def latency(count, p50, p99):
    return {"count": count, "mean_us": p50 * 1.2, "p50_us": p50, "p90_us": p50 * 2, "p99_us": p99, "p999_us": p99 * 3,
            "p9999_us": p99 * 9, "max_us": p99 * 20}


def device(name, state="ONLINE", size=400 * GIB, errors=0, **more):
    counts = {"reads": 9_000_000, "read_bytes": 1 << 40, "writes": 4_000_000, "write_bytes": 3 << 40}
    return {"name": name, "kind": "device", "state": state, "read_errors": errors, "write_errors": 0,
            "checksum_errors": 0, "size_bytes": size, "io": counts, "children": [], **more}


def group(name, kind, state, children, used):
    size = sum(child["size_bytes"] for child in children)
    return {"name": name, "kind": kind, "state": state, "read_errors": 0, "write_errors": 0, "checksum_errors": 0,
            "size_bytes": size, "space": {"raw_size_bytes": size, "raw_alloc_bytes": int(size * used)},
            "io": {}, "children": children}


def pool(name, guid, is_degraded=False, load=1.0, volumes=3, uptime=0):
    sick = {"state": "FAULTED", "errors": 12, "note": "too_many_errors"} if is_degraded else {}
    data = [[device(f"/dev/disk/by-id/nvme-eui.{row}{at}", **(sick if (row, at) == (0, 2) else {})) for at in range(4)]
            for row in range(2)]
    states = ["DEGRADED" if is_degraded and row == 0 else "ONLINE" for row in range(2)]
    groups = [group(f"raidz1-{row}", "raidz1", states[row], data[row], 0.61 + row / 50) for row in range(2)]
    logs = [group("mirror-2", "mirror", "ONLINE", [device("/dev/pmem0", size=16 * GIB), device("/dev/pmem1", size=16 * GIB)], 0.06)]
    every = data[0] + data[1] + logs[0]["children"]
    moved = int(uptime * load)
    counts = {d["name"]: {"reads": moved * 700, "read_bytes": moved * 9 << 20, "writes": moved * 200,
                          "write_bytes": moved * 14 << 20} for d in every}
    worst = "DEGRADED" if is_degraded else "ONLINE"
    advice = {"condition": "ok", "status": "", "action": ""}
    events = [
        {"pool": name, "guid": guid, "sequence": 1, "time_secs": NOW - 86_000, "event": "scan-began", "device": None, "text": "a scrub has begun"},
        {"pool": name, "guid": guid, "sequence": 2, "time_secs": NOW - 79_000, "event": "scan-ended", "device": None, "text": "the scrub is complete: 0 B repaired, 0 errors"},
    ]
    if is_degraded:
        path = data[0][2]["name"]
        advice = {"condition": "devices_failed",
                  "status": "One or more devices have failed. The others hold all data; fewer devices may fail than the pool was made for.",
                  "action": f"Replace the device: 'forebay pool replace {name} {path} NEW'."}
        events.append({"pool": name, "guid": guid, "sequence": 3, "time_secs": NOW - 240, "event": "taken-out",
                       "device": path, "text": f"{path} was taken out of use: 12 of its reads failed within ten minutes"})
    size = 2100 * GIB
    names = ["vm-images", "postgres", "scratch"][:volumes]
    view = {
        "status": {"name": name, "guid": guid, "state": worst, "groups": groups, "logs": logs, "lost": [], "lost_count": 0,
                   "txg": 812_345, "scan": {"kind": "SCRUB", "state": "COMPLETED", "started_at": NOW - 86_000,
                                            "elapsed_secs": 7000, "done_bytes": size, "total_bytes": size,
                                            "repaired_bytes": 0, "errors": 0}, **advice},
        "summary": {"name": name, "guid": guid, "size_bytes": size, "alloc_bytes": int(size * 0.62),
                    "free_bytes": int(size * 0.38), "available_bytes": int(size * 0.31), "health": worst},
        "stats": {"uptime_secs": 432_000 + uptime, "write_amplification": 1.31 if volumes else 0,
                  "segments": {"free": 3100, "open": 12, "full": 5200}, "since_import": {"segments_cleaned": 48_211},
                  "cache": {"used_bytes": 12 * GIB, "hits": 9_000_000 + moved * 5000, "misses": 700_000 + moved * 400},
                  "dirty_bytes": int(0.4 * GIB * load), "dirty_limit_bytes": 2 * GIB, "log_used_bytes": int(0.9 * GIB * load),
                  "log_capacity_bytes": 16 * GIB, "fua_latency": latency(4_000_000 if load else 0, 92, 310),
                  "read_latency": latency(9_000_000 if load else 0, 61, 480), "devices": counts},
        "volumes": [{"name": f"{name}/{volume}", "size_bytes": 512 * GIB, "used_bytes": (410 - 90 * at) * GIB,
                     "used_by_snapshots_bytes": at * 7 * GIB, "reserved_bytes": 0, "sync": "standard"}
                    for at, volume in enumerate(names)],
        "events": events if load else [],
    }
    fine = [point(time, load) for time in range(NOW - 600, NOW)] if load else []
    # For an hour of the night the server was down.
    coarse = [point(time, load) for time in range(NOW - 86_400, NOW, 60) if not 40_000 < NOW - time < 43_600] if load else []
    return {"fine": fine, "coarse": coarse, "view": view}


def states(uptime):
    several = [pool("tank", 7, uptime=uptime), pool("archive", 8, is_degraded=True, load=0.2, uptime=uptime)]
    return {"healthy": several[:1], "degraded": [pool("tank", 7, is_degraded=True, uptime=uptime)], "several": several,
            "new": [pool("tank", 7, load=0.0, volumes=0)], "empty": []}


def document(pools):
    server = {"version": "0.0.0", "pid": 4711, "time_secs": NOW, "uptime_secs": 432_000, "clients": 14 if pools else 0}
    return {"version": 1, "server": server, "fields": FIELDS, "pools": pools}


def serve(page, headers, port_file):
    text = open(page, "rb").read()
    real = [line.rstrip("\n").split(": ", 1) for line in open(headers)]
    asked = itertools.count()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name, _, rest = self.path.lstrip("/").partition("/")
            # Counts rise with each request and so does the time: rates are the same each time.
            known = states(next(asked))
            if name not in known:
                return self.send_error(404)
            is_state = rest.startswith("state.json")
            body = json.dumps(document(known[name])).encode() if is_state else text
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if is_state else "text/html; charset=utf-8")
            for key, value in real:
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(port_file, "w") as file:
        file.write(f"{server.server_port}\n")
    server.serve_forever()


def missing(wanted, found, path):
    """Fields of `wanted` that `found` has not."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key not in found:
                # Names of devices differ, and what is not there is left out.
                if not key.startswith("/") and key not in ("note", "space"):
                    yield f"{path}.{key}"
            else:
                yield from missing(value, found[key], f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and wanted and found:
        yield from missing(wanted[0], found[0], f"{path}[]")


def main(command, *names):
    if command == "serve":
        serve(*names)
    real = json.load(open(names[0]))
    lacking = sorted(set(missing(document([pool("tank", 7)]), real, "state")))
    if real["fields"] != FIELDS:
        lacking.append(f"fields: {real['fields']}")
    print("\n".join(lacking))
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The benchmark page: conditions, the design's targets (met or missed), and all tables."""

import charts

# Figures of OpenZFS 2.1.11 for comparison: 16 disks, a zvol of 12.5 %, random writes at QD 10, disk
# bytes per byte written (emulated guest, 2026-11-21).
OPENZFS = {
    "raid0 4K": 3.01,
    "raidz1 4K": 4.62,
    "raidz2 4K": 7.18,
    "raidz3 4K": 8.23,
    "raid0 64K": 1.27,
    "raidz1 64K": 1.84,
    "raidz2 64K": 1.85,
    "raidz3 64K": 2.05,
}
# Figures of "ZFS: wear amplification", 2013: the same layouts on drives of that time.
SEED = {
    "raid0 4K": 5.3,
    "raidz1 4K": 11.5,
    "raidz2 4K": 16.3,
    "raidz3 4K": 23.0,
    "raid0 64K": 1.2,
    "raidz1 64K": 2.5,
    "raidz2 64K": 3.7,
    "raidz3 64K": 4.9,
}


def number(value, digits=0):
    if value is None:
        return "–"
    return f"{value:,.{digits}f}"


def verdict(met):
    return "**met**" if met else "missed"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def targets(data):
    """The targets of the design that this run has figures for."""
    rows = []
    sync = data.get("sync_writes", {}).get("rows")
    if sync:
        ours = sync["Forebay, one log device"]
        raw = sync["bare log file, O_DIRECT O_DSYNC"]
        ceiling = sync.get("nbdkit null (ceiling)")
        if ceiling:
            allowed = 1 / (1 / raw["FUA QD1"]["iops"] + 1 / ceiling["FUA QD1"]["iops"])
            share = ours["FUA QD1"]["iops"] / allowed
            rows.append(
                [
                    "4 KiB FUA write, QD1, Unix socket",
                    "≥ 0.9 of what the bare log file and a null round trip allow (%s/s)"
                    % number(allowed),
                    "%s/s = %.2f" % (number(ours["FUA QD1"]["iops"]), share),
                    verdict(share >= 0.9),
                ]
            )
        qd32 = ours["FUA QD32"]["iops"]
        limits = [raw["FUA QD32"]["iops"]] + ([ceiling["FUA QD32"]["iops"]] if ceiling else [])
        rows.append(
            [
                "4 KiB random FUA, QD32",
                "above the bare log file (%s/s), or the NBD ceiling (%s/s)"
                % (number(limits[0]), number(limits[-1])),
                "%s/s" % number(qd32),
                verdict(qd32 >= min(limits)),
            ]
        )
    volumes = data.get("many_volumes", {}).get("rows")
    if volumes:
        one, many = volumes["1 volume"], volumes["64 volumes"]
        ratio = many["iops"] / one["iops"]
        rows.append(
            [
                "64 volumes against 1",
                "same IOPS within 5 %, log ≥ 99 % sequential",
                "%.2f of the IOPS, %.2f %% sequential" % (ratio, 100 * many["sequential"]),
                verdict(ratio >= 0.95 and many["sequential"] >= 0.99),
            ]
        )
    wear = data.get("amplification", {}).get("rows")
    if wear:
        for layout in ("raidz1", "raidz2", "raidz3"):
            row = wear[layout + " 4K"]
            limit = 1.05 * row["ideal"]
            rows.append(
                [
                    "bytes at the devices, 4 KiB random, 12 % full, " + layout + " of 16",
                    "≤ 1.05 × n/(n−p) = %.3f" % limit,
                    "%.3f by the kernel, %.3f by the pool" % (row["kernel"], row["stats"]),
                    verdict(row["kernel"] <= limit),
                ]
            )
    over = data.get("overwrites", {}).get("rows", {}).get("85 %")
    if over and "stats" in over:
        best = over["greedy_all"]
        rows.append(
            [
                "the same at 85 % full, uniform",
                "within 5 %% of the greedy limit (%.2f)" % best,
                "%.2f" % over["stats"],
                verdict(over["stats"] <= 1.05 * best),
            ]
        )
    reads = data.get("streams", {}).get("rows", {}).get("random read 4K QD32")
    if reads:
        share = reads["Forebay"]["iops"] / reads["bare file"]["iops"]
        rows.append(
            [
                "random read, QD32",
                "≥ 0.95 of the bare file (%s/s)" % number(reads["bare file"]["iops"]),
                "%s/s = %.2f" % (number(reads["Forebay"]["iops"]), share),
                verdict(share >= 0.95),
            ]
        )
    imported = data.get("import_time")
    if imported and "replay_mb_per_second" in imported:
        share = imported["replay_mb_per_second"] / imported["device_read_mb_per_second"]
        rows.append(
            [
                "import after a crash",
                "log replay at ≥ 0.8 of the device's read bandwidth (%s MB/s)"
                % number(imported["device_read_mb_per_second"]),
                "%s MB/s = %.2f" % (number(imported["replay_mb_per_second"]), share),
                verdict(share >= 0.8),
            ]
        )
    return rows


def pictures(result):
    """The charts of the page: file name suffix to alternative text and SVG."""
    data = result["measures"]
    found = {}
    if "rows" in data.get("sync_writes", {}):
        found["durable"] = (
            "Durable 4 KiB writes a second, by server",
            charts.durable(data["sync_writes"]),
        )
    if "rows" in data.get("amplification", {}):
        others = [("OpenZFS 2.1.11", OPENZFS), ("ZFS, 2013", SEED)]
        found["wear"] = (
            "Bytes at the devices for each byte written, by layout",
            charts.wear(data["amplification"], others),
        )
    return found


def mixed_part(mixed):
    """The part on mixes and tail latencies."""
    out = []
    if "mixes" in mixed:
        out.append("## Mixed loads\n")
        out.append(
            "By fio's NBD engine, which sleeps while it waits. raidz1 of four files, one log"
            " device. nbdkit's data stays in the page cache, writes too. Requests a second"
            " (MB/s).\n"
        )
        titles = list(next(iter(mixed["mixes"].values())))
        out.append(
            table(
                [""] + titles,
                [
                    [name]
                    + [
                        "%s (%s)" % (number(r[t]["iops"]), number(r[t]["mb_per_second"]))
                        for t in titles
                    ]
                    for name, r in mixed["mixes"].items()
                ],
            )
        )
    if "tails" in mixed:
        out.append("## How long durable writes take while something else goes on\n")
        out.append(
            "4 KiB FUA writes, four in flight, on one connection; µs. A scrub and a resilver are"
            " begun again whenever one ends. What is beside them runs on the same server.\n"
        )
        out.append(
            table(
                ["", "beside", "IOPS", "median", "99 %", "99.9 %", "99.99 %", "longest"],
                [
                    [title, name]
                    + [
                        number(r[k])
                        for k in ("iops", "p50_us", "p99_us", "p999_us", "p9999_us", "max_us")
                    ]
                    for title, rows in mixed["tails"].items()
                    for name, r in rows.items()
                ],
            )
        )
    return out


def reads_part(profile):
    """Use of the processors while 32 random reads are in flight."""
    who = ("server", "client", "others")
    purposes = profile["purposes"]
    names = {
        what: sum(purposes.get(w, {}).get(what, 0) for w in who)
        for w in who
        for what in purposes.get(w, {})
    }
    rows = [
        [what] + [number(purposes.get(w, {}).get(what, 0), 1) for w in who]
        for what in sorted(names, key=lambda what: -names[what])
    ]
    rows.append(
        ["**all**"] + ["**%s**" % number(sum(purposes.get(w, {}).values()), 1) for w in who]
    )
    return [
        "Where the processors are meanwhile, random reads of 4 KiB at QD32 by `forebay bench nbd`,"
        " %s a second under perf: hundredths of one processor, by what the sample's stack is for."
        " All processors together were idle for %s of them. Server and client look out for what"
        " comes next before they sleep: most of *going to sleep and waking* is that.\n"
        % (number(profile["iops"]), number(sum(purposes.get("idle", {}).values()), 1)),
        table([""] + list(who), rows),
        "The server's heaviest functions:\n",
        "```\n" + "\n".join(profile["lines"]) + "\n```\n",
    ]


def page(result, notes=""):
    """The page of a result. The handwritten `notes` follow the targets. The charts are files beside
    the page, with its date before their names."""
    shown = {
        name: "![%s](%s-%s.svg)\n" % (words, result["date"], name)
        for name, (words, _) in pictures(result).items()
    }
    data = result["measures"]
    c = result["conditions"]
    out = ["# Measured on %s\n" % result["date"]]
    out.append(
        "`make bench` wrote this page; the raw figures are in the JSON file beside it. Every number"
        " is a median of %d; the rounds of all subjects are interleaved in one run, so ratios say"
        " more than digits. Forebay, its peers and the bare files lie on the same disk.\n"
        % result["rounds"]
    )
    out.append(
        table(
            ["", ""],
            [
                ["machine", "%s, %d CPUs" % (c["cpu"], c["cpus"])],
                ["kernel", c["kernel"]],
                ["file system", c.get("file_system", "–")],
                ["Forebay", "%s, commit %s" % (c["forebay"], c.get("commit", "–"))],
                ["peers", "; ".join((c["fio"], c["nbdkit"], c["qemu-nbd"]))],
                ["load average before", ", ".join("%.1f" % v for v in c["load_average_before"])],
                ["load average after", ", ".join("%.1f" % v for v in c["load_average_after"])],
                ["took", "%.0f s" % sum(result["seconds"].values())],
            ],
        )
    )
    if c["load_average_before"][0] > c["cpus"]:
        out.append(
            "**The machine was busy with other work** (load average above its number of CPUs): "
            "rates are low and spread widely; amplification figures are counts and do not suffer.\n"
        )
    for name, measure in data.items():
        if "failed" in measure:
            out.append("`%s` failed: `%s`\n" % (name, measure["failed"].strip().split("\n")[-1]))
    out.append("## Targets\n")
    out.append(table(["what", "target", "measured", ""], targets(data)))
    if notes:
        out.append(notes.strip() + "\n")

    sync = data.get("sync_writes", {})
    if "rows" in sync:
        out.append("## 4 KiB writes that must be durable\n")
        out.append(
            "Requests a second (99th percentile in µs). The bare file's third column is 32 jobs"
            " with fdatasync after each write. Smallest and largest of the rounds are in the JSON"
            " file. Load average during these rounds: %.1f to %.1f.\n"
            % tuple(sync["load_average"])
        )
        out.append(shown["durable"])
        loads = list(next(iter(sync["rows"].values())))
        out.append(
            table(
                [""] + loads,
                [
                    [title]
                    + ["%s (%s)" % (number(r[l]["iops"]), number(r[l]["p99_us"])) for l in loads]
                    for title, r in sync["rows"].items()
                ],
            )
        )
        names = {"on": "one log device", "ma": "mirrored log", "no": "no log device"}
        out.append(
            table(
                ["log", "frames", "bytes a frame", "sequential"],
                [
                    [
                        names[k],
                        number(v["writes"]),
                        number(v["bytes"] / max(1, v["writes"])),
                        "%.2f %%" % (100 * v["sequential"]),
                    ]
                    for k, v in sync["log"].items()
                ],
            )
        )
    if "profile" in result:
        out.append("Where the server's time goes (perf, share of the server's samples):\n")
        for load, profile in result["profile"].items():
            out.append("%s, %s requests a second under perf:\n" % (load, number(profile["iops"])))
            out.append("```\n" + "\n".join(profile["lines"]) + "\n```\n")

    streams = data.get("streams", {})
    if "rows" in streams:
        out.append("## Sequential fill, random reads and writes\n")
        out.append(
            "raidz1 of four files, mirrored log, no FUA. Forebay's reads come from the devices (the"
            " pool was imported anew after the fill); nbdkit's come from the page cache. Requests a"
            " second (MB/s).\n"
        )
        titles = ["Forebay", "bare file", "nbdkit file (page cache)"]
        out.append(
            table(
                [""] + titles,
                [
                    [name]
                    + [
                        (
                            "%s (%s)" % (number(r[t]["iops"]), number(r[t]["mb_per_second"]))
                            if t in r
                            else "–"
                        )
                        for t in titles
                    ]
                    for name, r in streams["rows"].items()
                ],
            )
        )

    if result.get("profile_reads"):
        out += reads_part(result["profile_reads"])

    out += mixed_part(data.get("mixed", {}))

    wear = data.get("amplification", {})
    if "rows" in wear:
        out.append("## Bytes at the devices for each byte written, 16 devices, 12 % full\n")
        out.append(
            "After a fill; random writes at QD 10. \"Kernel\" is `/proc/PID/io`, \"pool\" is `pool"
            " stats`. OpenZFS 2.1.11 was measured on 2026-11-21 in an emulated guest (counts are"
            " real, zvol of 12.5 %); the last column is the published measurement of 2013.\n"
        )
        out.append(shown["wear"])
        out.append(
            table(
                [
                    "",
                    "kernel",
                    "pool",
                    "ideal n/(n−p)",
                    "data",
                    "parity",
                    "metadata",
                    "cleaning",
                    "padding",
                    "OpenZFS 2.1.11",
                    "2013",
                ],
                [
                    [name, "%.3f" % r["kernel"], "%.3f" % r["stats"], "%.3f" % r["ideal"]]
                    + [
                        "%.3f" % r["parts"][p]
                        for p in ("data", "parity", "metadata", "cleaning", "padding")
                    ]
                    + [OPENZFS[name], SEED[name]]
                    for name, r in wear["rows"].items()
                ],
            )
        )
    over = data.get("overwrites", {})
    if "rows" in over:
        out.append("## Uniform 4 KiB overwrites of ten times the volume\n")
        out.append(
            "raid0 of four small files. The formula is that of greedy cleaning with large segments,"
            " α/(α + W(−α·e^−α)): once with α = all segments ÷ volume, once with the segments that"
            " were really taken (a pool keeps some back so that cleaning can always go on). The"
            " figure is the median over the second half of the overwrites.\n"
        )
        rows = []
        for name, r in over["rows"].items():
            if "failed" in r:
                rows.append(
                    [name, number(r["volume_mib"]), "refused: " + r["failed"], "", "", "", "", ""]
                )
                continue
            rows.append(
                [
                    name,
                    number(r["volume_mib"]),
                    "%.3f" % r["kernel"],
                    "%.3f" % r["stats"],
                    "%.3f" % r["parts"]["cleaning"],
                    "%.3f" % r["parts"]["metadata"],
                    "%.3f" % r["greedy_all"],
                    "%.3f" % r["greedy_taken"] if r["greedy_taken"] else "–",
                ]
            )
        out.append(
            table(
                [
                    "full",
                    "volume, MiB",
                    "kernel",
                    "pool",
                    "cleaning",
                    "metadata",
                    "greedy, all segments",
                    "greedy, segments taken",
                ],
                rows,
            )
        )
    volumes = data.get("many_volumes", {})
    if "rows" in volumes:
        out.append("## One volume against 64\n")
        out.append("64 writers, each a process of its own with one 4 KiB FUA write in flight.\n")
        out.append(
            table(
                ["", "IOPS", "smallest – largest", "log writes that start where the last ended"],
                [
                    [
                        n,
                        number(r["iops"]),
                        "%s – %s" % tuple(map(number, r["iops_spread"])),
                        "%.2f %%" % (100 * r["sequential"]),
                    ]
                    for n, r in volumes["rows"].items()
                ],
            )
        )
    imported = data.get("import_time", {})
    if "ready_seconds" in imported:
        out.append("## Import after kill -9\n")
        out.append(
            table(
                ["", ""],
                [
                    [
                        "log replayed",
                        "%s MiB, %s records"
                        % (number(imported["log_mib"]), number(imported["records"])),
                    ],
                    ["from start to serving", "%.2f s" % imported["ready_seconds"]],
                    ["of that, import", "%.2f s" % imported["import_seconds"]],
                    ["of that, replay", "%.2f s" % imported["replay_seconds"]],
                    [
                        "read from the log device",
                        "%s MiB (the rest of the ring is looked through for frames that would "
                        "contradict the end): %s MB/s of replay"
                        % (number(imported["read_mib"]), number(imported["replay_mb_per_second"])),
                    ],
                    [
                        "the log file read by fio",
                        "%s MB/s" % number(imported["device_read_mb_per_second"]),
                    ],
                ],
            )
        )
    return "\n".join(out)

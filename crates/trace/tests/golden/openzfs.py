#!/usr/bin/env python3
"""Counts of the OpenZFS log device traces, from the text of blkparse alone.

usage: openzfs.py FOLDER > openzfs.json      (FOLDER holds openzfs_*.blkparse.txt.xz)

Nothing here is shared with the crate: lines are split with str.split, all events are kept in
lists, and buckets come from bit_length.
"""
import collections
import json
import lzma
import os
import sys


def events(path):
    """(stage, time_ns, pid, letters, sector, sectors) of Q, D and C lines."""
    for line in lzma.open(path, "rt"):
        f = line.split()
        if len(f) < 7 or "," not in f[0] or f[5] not in "QDC":
            continue
        secs, frac = f[3].split(".")
        has_range = len(f) > 9 and f[8] == "+"
        sector, sectors = (int(f[7]), int(f[9])) if has_range else (0, 0)
        yield f[5], int(secs) * 10**9 + int(frac), int(f[4]), f[6], sector, sectors


def bucket(distance):
    if distance == 0:
        return 0
    size = 1 << (abs(distance).bit_length() - 1)
    return size if distance > 0 else -size


def iopattern(done, begin, until, interval_ns):
    """Rows of DTrace's iopattern: every value as its printf would show it."""
    rows, last, at = [], 0, 0
    end = begin + interval_ns
    while at < len(done) or (interval_ns and end - interval_ns <= until):
        part = []
        while at < len(done) and (interval_ns == 0 or done[at][1] < end):
            part.append(done[at])
            at += 1
        ran = kr = kw = 0
        sizes = []
        for _, _, _, letters, sector, sectors in part:
            loc = sector * 512
            ran += loc != last
            last = loc + sectors * 512
            sizes.append(sectors * 512)
            if letters.startswith("R"):
                kr += sectors * 512
            else:
                kw += sectors * 512
        n = len(part)
        pct = ran * 100 // n if n else 0
        rows.append([pct, 100 - pct if n else 0, n, min(sizes, default=0), max(sizes, default=0),
                     sum(sizes) // n if n else 0, kr // 1024, kw // 1024])
        end += interval_ns
    return rows


def biopattern(done):
    """The one row of bcc's biopattern over the whole run."""
    last = ran = seq = size = 0
    for _, _, _, _, sector, sectors in done:
        if last:
            if last == sector:
                seq += 1
            else:
                ran += 1
            size += sectors * 512
        last = sector + sectors
    total = ran + seq
    pct = int(round(ran * 100 / total))
    return [pct, 100 - pct, total, size // 1024]


def seeks(start, by_thread, signed):
    last, out = {}, collections.defaultdict(collections.Counter)
    for _, _, pid, _, sector, sectors in start:
        key = pid if by_thread else 0
        if key in last and (last[key] != 0 or not by_thread):
            distance = sector - last[key]
            out[key][bucket(distance if signed else abs(distance))] += 1
        last[key] = sector + sectors
    return {str(k): {str(b): v[b] for b in sorted(v)} for k, v in sorted(out.items())}


def main():
    out = {}
    for n in (1, 5):
        path = os.path.join(sys.argv[1], f"openzfs_2.1.11_slog_{n}fs.blkparse.txt.xz")
        every = list(events(path))
        done_all = [e for e in every if e[0] == "C"]
        data = {s: [e for e in every if e[0] == s and e[5] > 0] for s in "QDC"}
        # From the first event to the last completion, which here is a flush's.
        begin, until = every[0][1], done_all[-1][1]
        issued, completed, lat = {}, 0, []
        for stage, t, _, letters, sector, sectors in every:
            if stage == "D" and sectors:
                issued[sector] = t
            if stage == "C" and sectors:
                lat.append(t - issued.pop(sector))
        flushes = {s: sum(1 for e in every if e[0] == s and e[5] == 0 and e[3][0] == "F") for s in "QDC"}
        gaps = []
        end = None
        for e in data["D"]:
            if end is not None:
                gaps.append(e[4] - end)
            end = e[4] + e[5]
        out[f"{n}fs"] = {
            "writes": {s: len(data[s]) for s in "QDC"},
            "flushes": flushes,
            "empty_completions": sum(1 for e in done_all if e[5] == 0 and e[3][0] != "F"),
            "bytes_written": sum(e[5] for e in data["D"]) * 512,
            "sequential": sum(1 for g in gaps if g == 0),
            "small_forward_gaps": sum(1 for g in gaps if 0 < g < 256),
            "backward": sum(1 for g in gaps if g < 0),
            "latency_ns": {"count": len(lat), "min": min(lat), "max": max(lat), "sum": sum(lat)},
            "iopattern_1s": iopattern(data["C"], begin, until, 10**9),
            "iopattern": iopattern(data["C"], begin, until, 0),
            "biopattern": biopattern(data["C"]),
            "biopattern_with_flushes": biopattern(done_all),
            "seeksize_by_thread": seeks(data["Q"], True, False),
            "seeks_signed": seeks(data["D"], False, True)["0"],
            "seeks_at_queue": seeks(data["Q"], False, False)["0"],
        }
    json.dump(out, sys.stdout, indent=1)
    print()


main()

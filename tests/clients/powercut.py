#!/usr/bin/env python3
"""Power cuts on recorded devices. A pool lives on devices whose every write and flush is recorded in
one order, together with marks of a client that say what had been answered. Each cut is a moment of the
record: what a flush of that device covered is there, and of each other write nothing, all, or some
sectors. From such images the pool is imported, and every volume is judged.

    powercut.py FOREBAY FOLDER RUN --layout "raidz1 3 log mirror 2" [--seconds S] [--cuts N] [--seed N]
                [--only CUT] [--guest CONSOLE -- QEMU...]

With --guest the pool lives in a guest on virtio drives, and killing the guest ends the record.
"""
import argparse
import collections
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import stamps
import writelog

SECTOR = 512
WAYS = ("none", "all", "random", "torn-last", "torn-any", "last-only")


def words_of(layout, paths):
    """Turns "raidz1 3 log mirror 2" into the words of `pool create`, and says how many devices."""
    words, count = [], 0
    for word in layout.split():
        if word.isdigit():
            words += paths[count:count + int(word)]
            count += int(word)
        else:
            words.append(word)
    return words, count


class Server:
    def __init__(self, forebay, folder, run, arguments):
        self.forebay, self.log = forebay, os.path.join(folder, "serve.log")
        self.socket = os.path.join(run, "s")
        self.environment = dict(os.environ, FOREBAY_STATE_DIR=os.path.join(run, "state"))
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(
                [forebay, "serve", "p"] + arguments + ["--listen", "unix:" + self.socket],
                stdout=out, stderr=subprocess.STDOUT, env=self.environment)
        end = time.monotonic() + 60
        while "ready: " not in self.said():
            if self.process.poll() is not None:
                raise ValueError("the import was refused: " + self.said())
            if time.monotonic() > end:
                raise ValueError("not ready after 60 s: " + self.said())
            time.sleep(0.01)

    def said(self):
        with open(self.log, errors="replace") as source:
            return source.read()

    def command(self, *words):
        done = subprocess.run([self.forebay] + list(words), env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise ValueError("%s: %s" % (" ".join(words), done.stdout))
        return done.stdout

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if "panicked" in self.said():
            raise ValueError("the server panicked: " + self.said())


def three_volumes(args, address):
    return [stamps.Volume(i + 1, address, "p/" + name, kind, args.seed * 10 + i, 6)
            for i, (name, kind) in enumerate((("a", "serial"), ("b", "serial"), ("c", "deep")))]


def record_guest(args, files):
    """The same in a guest: its drives are recorded, its load comes through its network."""
    recorder = writelog.Recorder(args.folder, args.run, files, served=False)
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = args.command + recorder.nodes(files)
        command[command.index("-append") + 1] += " layout=" + args.layout.replace(" ", ",")
        for i in range(len(files)):
            # Not nvme: qemu's (7.2) takes a FUA write for any other.
            command += ["-device", "virtio-blk-pci,drive=d%d" % i]
        command += ["-netdev", "user,id=n,hostfwd=tcp:127.0.0.1:%d-:10809" % port,
                    "-device", "virtio-net-pci,netdev=n"]

        def ready():
            with open(args.guest, errors="replace") as console:
                return "ready: serving" in console.read()
        recorder.start(command, ready, patience_s=120)
        volumes = three_volumes(args, "127.0.0.1:%d" % port)
        stamps.load(volumes, args.seconds, writelog.Marks(recorder.socket, recorder.marks))
        # The power fails here; what the guest's kernel still holds is gone.
        recorder.processes[-1].kill()
        return volumes
    finally:
        recorder.stop()


def record(args, files):
    """Runs the load on recorded devices; returns the volumes with their histories."""
    if args.guest:
        return record_guest(args, files)
    recorder = writelog.Recorder(args.folder, args.run, files)
    server = None
    try:
        words, _ = words_of(args.layout, recorder.devices)
        environment = dict(os.environ, FOREBAY_STATE_DIR=os.path.join(args.run, "state"))
        for command in (["pool", "create", "-f", "-o", "txg_timeout=1", "p"] + words,
                        ["volume", "create", "-V", "4M", "p/a"],
                        ["volume", "create", "-V", "4M", "p/b"],
                        ["volume", "create", "-V", "8M", "p/c"]):
            subprocess.run([args.forebay] + command, env=environment, check=True,
                           stdout=subprocess.DEVNULL)
        server = Server(args.forebay, args.folder, args.run, [])
        volumes = three_volumes(args, server.socket)
        marks = writelog.Marks(recorder.socket, recorder.marks)
        stamps.load(volumes, args.seconds, marks)
        server.kill()
        return volumes
    finally:
        if server and server.process.poll() is None:
            server.kill()
        recorder.stop()


class Devices:
    """What is durable on each device, as files, and what is not, as a list."""

    def __init__(self, folder, sizes):
        self.folder, self.sizes = folder, sizes
        os.makedirs(folder)
        self.pending = [[] for _ in sizes]
        self.files = [self.fresh(os.path.join(folder, "d%d" % i), s) for i, s in enumerate(sizes)]
        self.open = [os.open(path, os.O_RDWR) for path in self.files]

    @staticmethod
    def fresh(path, size):
        with open(path, "wb") as out:
            out.truncate(size)
        return path

    def apply(self, event):
        if event[0] == "flush":
            for write in self.pending[event[1]]:
                put(self.open[event[1]], write)
            self.pending[event[1]] = []
        elif event[0] == "write" and event[4]:
            # With FUA it is on media, whatever becomes of older writes at the same place.
            put(self.open[event[1]], event)
            if self.pending[event[1]]:
                self.pending[event[1]].append(event)
        elif event[0] in ("write", "zero"):
            self.pending[event[1]].append(event)

    def image(self, folder, way, rng):
        """Copies of the devices after a power cut; returns how much was left unflushed."""
        os.makedirs(folder)
        for path, pending in zip(self.files, self.pending):
            copy = os.path.join(folder, os.path.basename(path))
            subprocess.run(["cp", "--sparse=always", path, copy], check=True)
            fd = os.open(copy, os.O_RDWR)
            for index, write in enumerate(pending):
                if write[0] == "write" and write[4]:
                    put(fd, write)
                    continue
                last = index == len(pending) - 1
                fate = {"none": "lost", "all": "kept", "last-only": "kept" if last else "lost",
                        "random": rng.choice(("kept", "lost")),
                        "torn-last": "torn" if last else "kept",
                        "torn-any": rng.choice(("kept", "lost", "torn", "sectors"))}[way]
                if fate == "kept":
                    put(fd, write)
                elif fate != "lost":
                    tear(fd, write, fate, rng)
            os.close(fd)
        return sum(1 for p in self.pending for w in p if w[0] == "zero" or not w[4])


def length_of(write):
    return len(write[3]) if write[0] == "write" else write[3]


def put(fd, event):
    if event[0] == "zero":
        data, at, step = None, 0, 1 << 20
        while at < event[3]:
            os.pwrite(fd, bytes(min(step, event[3] - at)), event[2] + at)
            at += step
    else:
        data = event[3]
        os.pwrite(fd, data, event[2])


def tear(fd, event, fate, rng):
    sectors = length_of(event) // SECTOR
    cut = rng.randint(0, sectors)
    for sector in range(sectors):
        if sector < cut if fate == "torn" else rng.random() < 0.5:
            data = bytes(SECTOR) if event[0] == "zero" else event[3][sector * SECTOR:][:SECTOR]
            os.pwrite(fd, data, event[2] + sector * SECTOR)


def choose(path, devices, data_devices, cuts, rng):
    """Moments of the record: half of them just before a flush of a data device (a group's way to its
    root), a quarter just before any flush, the rest anywhere after the first mark."""
    commits, flushes, first, total = [], [], None, 0
    for index, event in enumerate(writelog.events(path, devices)):
        total = index + 1
        if event[0] == "mark" and first is None:
            first = index
        if first is not None and event[0] == "flush":
            (commits if event[1] < data_devices else flushes).append(index)
    if first is None or total - first < 100:
        raise ValueError("the record has only %d events" % total)
    flushes += commits

    def some(moments, count):
        return rng.sample(moments, min(count, len(moments)))
    chosen = some(commits, cuts // 2) + some(flushes, cuts // 4)
    while len(chosen) < cuts:
        chosen.append(rng.randrange(first + 1, total + 1))
    print("record: %d events after the load began, %d flushes of data devices, %d of all"
          % (total - first, len(commits), len(flushes)))
    return sorted(chosen)


def examine(args, volumes, folder, run, now, scrub):
    """Imports an image and judges it. Returns what was found, in a word or two."""
    os.makedirs(run)
    server = Server(args.forebay, folder, run, ["-d", folder])
    try:
        reached = [stamps.judge(v, stamps.read_volume(v, server.socket), now) for v in volumes]
        if scrub:
            server.command("pool", "scrub", "-w", "p")
            status = server.command("pool", "status", "p")
            if "errors: No known data errors" not in status or "repaired 0B in" not in status:
                raise ValueError("the scrub is not clean:\n" + status)
            for v in volumes:
                stamps.judge(v, stamps.read_volume(v, server.socket), now)
    finally:
        server.kill()
    return reached


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("forebay")
    parser.add_argument("folder")
    parser.add_argument("run")
    parser.add_argument("--layout", required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, default=None, help="one cut of a record that was kept")
    parser.add_argument("--guest")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.command = words[split + 1:]
    rng = random.Random(args.seed)
    _, count = words_of(args.layout, [""] * 64)
    _, data_devices = words_of(args.layout.split(" log ")[0], [""] * 64)
    sizes = [(96 if i < data_devices else 64) << 20 for i in range(count)]
    histories = os.path.join(args.folder, "histories")
    if args.only is None:
        os.makedirs(os.path.join(args.folder, "live"))
        files = [Devices.fresh(os.path.join(args.folder, "live", "d%d" % i), size)
                 for i, size in enumerate(sizes)]
        volumes = record(args, files)
        for volume in volumes:
            volume.link = None
        with open(histories, "wb") as out:
            pickle.dump(volumes, out)
    else:
        shutil.rmtree(os.path.join(args.folder, "durable"), ignore_errors=True)
        shutil.rmtree(os.path.join(args.folder, "cut%d" % args.only), ignore_errors=True)
        with open(histories, "rb") as source:
            volumes = pickle.load(source)
    log = os.path.join(args.folder, "master.log")
    moments = choose(log, count, data_devices, args.cuts, rng)
    devices = Devices(os.path.join(args.folder, "durable"), sizes)
    now, at, running, seen = 0, 0, {}, collections.Counter()
    left = []

    def reap():
        pid, status = os.wait()
        number, folder = running.pop(pid)
        if status:
            while running:  # each takes its server with it
                running.pop(os.wait()[0])
            sys.exit("cut %d of %s: violated; images in %s" % (number, args.layout, folder))
        shutil.rmtree(folder)

    for index, event in enumerate(writelog.events(log, count)):
        while at < len(moments) and moments[at] == index:
            way = WAYS[rng.randrange(len(WAYS))]
            folder = os.path.join(args.folder, "cut%d" % at)
            mine = random.Random(args.seed * 1000003 + at)
            if args.only in (None, at):
                left.append(devices.image(folder, way, mine))
                seen[way] += 1
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        reached = examine(args, volumes, folder, os.path.join(args.run, "c%d" % at),
                                          now, at % 4 == 0)
                        if args.only is not None:
                            print("cut %d: %s, reached %s" % (at, way, reached))
                        code = 0
                    except (ValueError, OSError, EOFError) as reason:
                        print("cut %d, %s, event %d, clock %d: %s" % (at, way, index, now, reason))
                    sys.stdout.flush()
                    os._exit(code)
                running[pid] = (at, folder)
                if len(running) == 2:
                    reap()
            at += 1
        if event[0] == "mark":
            now = event[1]
        devices.apply(event)
    while running:
        reap()
    print("powercut: %s: %d operations, %d cuts (%s), %.1f unflushed writes at a cut, at most %d: all judged"
          % (args.layout, sum(len(v.history) for v in volumes), sum(seen.values()),
             ", ".join("%s %d" % pair for pair in sorted(seen.items())),
             sum(left) / max(1, len(left)), max(left, default=0)))


if __name__ == "__main__":
    main()

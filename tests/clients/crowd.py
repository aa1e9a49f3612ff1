"""Many administrators and clients at once, on one server that is stopped and killed.

Families of volumes know what must be read (`families.py`). Beside them there are administrators and
clients without a memory, who use the same few names, one administrator for the devices, and one for a
pool that comes and goes: their commands may be refused, in words, but not hang. At the end everything
is destroyed, and the space must be free.

    crowd.py FOREBAY FOLDER SOCKET SECONDS SEED
"""
import json
import os
import random
import signal
import subprocess
import threading
import time
import traceback

from crowd_base import (
    BINARY, FLUSH, FOLDER, HANG_SECONDS, READ, SECONDS, SEED, SOCKET, TRIM, WRITE, ZEROES, Client,
    Cut, Refused, command, counts, ended, fail, failures, note, path, sent,
)
from families import ENOSPC, EINVAL, ESHUTDOWN, FUA, Family, gate

EPERM, EIO = 1, 5


def strange_administrator(seed):
    """Uses few names, which others use as well."""
    rng = random.Random(seed)

    def volume():
        return "p/w%d" % rng.randrange(4)

    def snapshot():
        return "%s@%d" % (volume(), rng.randrange(3))

    properties = (
        "sync=disabled sync=standard iops_limit=20 iops_limit=none bandwidth_limit=1M compression=zstd "
        "bandwidth_limit=none dedup=on compression=off cache_writes=on snapshot_every=frequent=2 "
        "snapshot_every=off reservation=none"
    ).split()
    while not ended.is_set():
        flags = [flag for flag in ("-f", "-r") if rng.random() < 0.5]
        force = [flag for flag in flags if flag == "-f"]
        words = rng.choice(
            [
                ["create", "-V", rng.choice(["1M", "4M", "10M"]), volume()],
                ["create", "-V", "4M", volume()],
                ["destroy", *flags, volume()],
                ["destroy", snapshot()],
                ["destroy", volume() + "@0%2"],
                ["snapshot", snapshot()],
                ["snapshot", snapshot()],
                ["rollback", *flags, snapshot()],
                ["clone", snapshot(), volume()],
                ["promote", *force, volume()],
                ["rename", *force, volume(), volume()],
                ["rename", snapshot(), "%s@%d" % (volume(), rng.randrange(3))],
                ["resize", "-f", "-V", rng.choice(["1M", "8M", "3M"]), volume()],
                ["set", rng.choice(properties), volume()],
                ["hold", "t", snapshot()],
                ["release", "t", snapshot()],
                ["list", "-t", "all"],
                ["get", "all", volume()],
                None,
                None,
            ]
        )
        if words:
            command("volume", *words, who="stranger")
        else:
            flags = [flag for flag in ("-F", "-s") if rng.random() < 0.3]
            at_most = rng.choice([None, rng.randrange(1, 3_000_000)])
            to = rng.choice(["p/w%d", "q/w%d"]) % rng.randrange(4)
            sent([snapshot()], to, "stranger", flags, at_most)
            if rng.random() < 0.3:
                command("volume", "receive", "-A", to, who="stranger")
        time.sleep(rng.random() * 0.1)


def strange_client(seed, exports):
    rng = random.Random(seed)
    usual = (EPERM, EIO, EINVAL, ENOSPC, ESHUTDOWN)
    while not ended.is_set():
        export = rng.choice(exports) % rng.randrange(4) if "%" in exports[0] else exports[0]
        link = None
        try:
            link = Client(export)
            until = time.time() + rng.choice([0.1, 1, 5])
            while time.time() < until and not ended.is_set():
                length = rng.choice([512, 4096, 65536, 1 << 20])
                offset = rng.randrange(max(1, link.size - length)) & ~511
                kind = rng.choice([READ, WRITE, WRITE, FLUSH, TRIM, ZEROES])
                try:
                    if kind == FLUSH:
                        link.ask(FLUSH, 0, 0)
                    else:
                        data = os.urandom(16) * (length // 16) if kind == WRITE else b""
                        flags = FUA if kind == WRITE and rng.random() < 0.3 else 0
                        link.ask(kind, offset, length, data, flags)
                except Refused as error:
                    if error.args[0] not in usual:
                        fail("request %d of %s fails: %s" % (kind, export, error))
        except (Cut, Refused):
            time.sleep(0.05)
        finally:
            if link:
                link.close()


def members(pool):
    """The files of a pool's devices, and the states of these."""
    found = []

    def walk(tree):
        if isinstance(tree, dict):
            if tree.get("kind") == "device":
                found.append((os.path.basename(tree["name"]), tree["state"]))
            tree = list(tree.values())
        if isinstance(tree, list):
            for part in tree:
                walk(part)

    code, out = command("pool", "status", pool, "--json")
    walk(json.loads(out) if code == 0 else [])
    return found


def device_administrator(seed):
    rng = random.Random(seed)
    while not ended.is_set():
        with gate:
            now = members("p")
            data = [path(name) for name, _ in now if name[0] == "d"]
            logs = [path(name) for name, _ in now if name[0] == "l"]
            away = [path("d%d" % i) for i in range(6) if path("d%d" % i) not in data]
            free = [path("l%d" % i) for i in range(4) if path("l%d" % i) not in logs]
            if data and logs and away and free:
                words = rng.choice(
                    [
                        ["offline", "p", rng.choice(data)],
                        ["offline", "p", rng.choice(logs)],
                        ["replace", "-f", "p", rng.choice(data), rng.choice(away)],
                        ["scrub", "p"],
                        ["scrub", "-s", "p"],
                        ["scrub", "-p", "p"],
                        ["resilver", "p"],
                        ["sync", "p"],
                        ["clear", "p"],
                        ["stats", "p"],
                        ["history", "p"],
                        ["events", "p"],
                        ["add", "-f", "p", "cache", path("c0")],
                        ["remove", "p", path("c0")],
                        ["detach", "p", rng.choice(logs)],
                        ["attach", "-f", "p", rng.choice(logs), rng.choice(free)],
                        ["attach", "-f", "p", rng.choice(logs), rng.choice(free)],
                        ["add", "-f", "p", "log", rng.choice(free)],
                        ["remove", "p", rng.choice(logs)],
                    ]
                )
                command("pool", *words, who="devices")
            if rng.random() < 0.5:
                for name, state in members("p"):
                    if state != "ONLINE":
                        command("pool", "online", "p", path(name), who="devices")
        time.sleep(rng.random() * 0.5)


def pool_administrator(seed):
    """A pool that comes and goes."""
    rng = random.Random(seed)
    while not ended.is_set():
        words = rng.choice(
            [
                ["pool", "create", "-f", "x", "mirror", path("x0"), path("x1"), "log", path("x2")],
                ["pool", "export", "x"],
                ["pool", "export", "-f", "x"],
                ["pool", "import", "-d", FOLDER, "x"],
                ["pool", "import", "-f", "-d", FOLDER, "x"],
                ["pool", "import", "-d", FOLDER],
                ["pool", "destroy", "-f", "x"],
                ["pool", "add", "-f", "x", "mirror", path("x3"), path("x4")],
                ["volume", "create", "-V", "4M", "x/v"],
                ["volume", "create", "-V", "4M", "x/v"],
                ["volume", "snapshot", "x/v@1"],
                ["volume", "destroy", "-r", "-f", "x/v"],
            ]
        )
        with gate:
            command(*words, who="pool")
        time.sleep(rng.random() * 0.3)


class Server:
    def __init__(self):
        self.starts = 0

    def start(self):
        self.starts += 1
        log = path("serve.%d.log" % self.starts)
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        words = [BINARY, "serve", "--listen", "unix:" + SOCKET]
        with open(log, "w") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        with open(path("serve.pid"), "w") as file:
            file.write("%d\n" % self.process.pid)
        until = time.time() + HANG_SECONDS
        while "ready: " not in open(log).read():
            if self.process.poll() is not None or time.time() > until:
                return fail("the server is not ready: " + open(log).read()[-600:])
            time.sleep(0.02)

    def end(self, how):
        self.process.send_signal(how)
        try:
            code = self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            return fail("the server does not end")
        if how != signal.SIGKILL and code:
            fail("the server ended with %d" % code)

    def panics(self):
        for number in range(1, self.starts + 1):
            said = open(path("serve.%d.log" % number)).read()
            if "panicked" in said:
                fail("the server panicked: " + said[said.index("panicked") - 200 :][:800])


def restarts(server, families, seed):
    rng = random.Random(seed)
    while not ended.wait(8 + rng.random() * 20):
        gate.close()
        volumes = [volume for family in families for volume in family.volumes]
        for volume in volumes:
            volume.is_closed = True
        how = rng.choice([signal.SIGKILL, signal.SIGTERM])
        note("the server is ended by", how)
        server.end(how)
        while any(volume.clients for volume in volumes):
            time.sleep(0.01)
        for volume in volumes if how == signal.SIGKILL else []:
            volume.live = {block: set(numbers) for block, numbers in volume.kept.items()}
        server.start()
        for family in families:
            for volume in family.volumes:
                if rng.random() < 0.5:
                    family.judge_volume(volume)
                volume.is_closed = False
        gate.open()


def destroy_all(pool):
    """Destroys every volume; then nothing of the space is taken."""
    for attempt in range(10):
        listed = json.loads(command("volume", "list", "-t", "all", "--json", pool)[1])
        for snapshot in listed["snapshots"]:
            for tag in snapshot["holds"]:
                command("volume", "release", tag, snapshot["name"])
        for volume in listed["volumes"]:
            if volume["resume_token"]:
                command("volume", "receive", "-A", volume["name"])
            if volume["origin"] and attempt > 4:
                command("volume", "promote", volume["name"])
            command("volume", "destroy", "-r", "-f", volume["name"])
    until = time.time() + HANG_SECONDS
    while True:
        command("pool", "sync", pool)
        listed = json.loads(command("pool", "list", "--json")[1])["pools"]
        taken = next(found["alloc_bytes"] for found in listed if found["name"] == pool)
        if taken == 0:
            return
        if time.time() > until:
            return fail("%s: everything is destroyed, and %d bytes are taken" % (pool, taken))
        time.sleep(0.5)


def main():
    sizes = {"d": (6, 400), "l": (4, 64), "c": (1, 256), "q": (2, 256), "x": (5, 256)}
    for kind, (count, mebibytes) in sizes.items():
        for number in range(count):
            with open(path("%s%d" % (kind, number)), "w") as device:
                device.truncate(mebibytes << 20)
    rng = random.Random(SEED)
    layout, count = rng.choice([("raidz1", 3), ("mirror", 2), ("raidz2", 4)])
    data = [path("d%d" % number) for number in range(count)]
    create = ["pool", "create", "p", layout, *data, "log", "mirror", path("l0"), path("l1")]
    if command(*create)[0] or command("pool", "create", "q", "mirror", path("q0"), path("q1"))[0]:
        return fail("the pools are not made")
    server = Server()
    server.start()
    families = [Family(number, SEED * 100 + number) for number in range(2)]
    tasks = [(device_administrator, SEED + 1), (pool_administrator, SEED + 2)]
    tasks += [(restarts, server, families, SEED + 3), (strange_client, SEED + 4, ["x/v"])]
    for number in range(2):
        tasks.append((strange_administrator, SEED * 7 + number))
        tasks.append((strange_client, SEED * 8 + number, ["p/w%d", "q/w%d", "p/w%d@1"]))
    for family in families:
        tasks.append((family.run_administrator,))
        tasks += [(family.run_client, client, SEED * 9 + client) for client in (0, 1)]
    threads = [threading.Thread(target=guarded, args=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    ended.wait(SECONDS)
    ended.set()
    for thread in threads:
        thread.join(2 * HANG_SECONDS)
        if thread.is_alive():
            fail("a thread does not end")
    for family in families if not failures else []:
        for volume in family.volumes:
            family.judge_volume(volume)
            for snapshot in volume.snapshots:
                family.judge_snapshot(snapshot)
    for pool in ("p", "q") if not failures else []:
        destroy_all(pool)
    server.end(signal.SIGTERM)
    server.panics()
    writes = sum(family.writes for family in families)
    text = "%d commands, %d refused, %d writes, %d servers"
    print(text % (sum(counts.values()), counts["refused"], writes, server.starts))


def guarded(task, *words):
    try:
        task(*words)
    except Exception:
        fail(traceback.format_exc())


main()
raise SystemExit(1 if failures else 0)

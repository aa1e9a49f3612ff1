"""A family of volumes with an administrator and two clients, which knows what must be read.

Every block is one client's alone, and carries a number of 16 bytes; for each block the family knows
which numbers may be read now, and which after a kill. A snapshot is read when it is there: it must be
one instant of what each client did.
"""
import collections
import random
import struct
import threading
import time
import traceback

from crowd_base import (
    BLOCK, COMMON, FLUSH, HANG_SECONDS, READ, TRIM, WRITE, ZERO, ZEROES, Client, Cut, Refused,
    command, ended, expanded, fail, note, sent, shown,
)
from ledger import ESHUTDOWN

# Blocks in a row that belong to one client, then as many to the other.
CHUNK = 16
FUA, NO_HOLE, FAST_ZERO = 1, 2, 16
SEND_FAST_ZERO = 0x800
EINVAL, ENOSPC = 22, 28


class Gate:
    """Commands of those who remember go through it; a stop of the server closes it."""

    def __init__(self):
        self.condition = threading.Condition()
        self.inside = 0
        self.is_closed = False

    def __enter__(self):
        with self.condition:
            self.condition.wait_for(lambda: not self.is_closed)
            self.inside += 1

    def __exit__(self, *_):
        with self.condition:
            self.inside -= 1
            self.condition.notify_all()

    def close(self):
        with self.condition:
            self.is_closed = True
            self.condition.wait_for(lambda: self.inside == 0)

    def open(self):
        with self.condition:
            self.is_closed = False
            self.condition.notify_all()


gate = Gate()


class Volume:
    def __init__(self, name, blocks, content=None, origin=None):
        self.name, self.blocks, self.usable = name, blocks, blocks
        self.origin = origin
        self.snapshots = []
        # Block -> the numbers that may be read now, and after a kill. None: zeroes.
        self.live = copied(content or {})
        self.kept = copied(content or {})
        # How often each block was changed.
        self.changes = collections.Counter()
        # Client -> the blocks and the number of its change under way.
        self.under_way = {}
        # While a snapshot is taken: what it may have of blocks that change meanwhile.
        self.recorded = None
        self.is_closed = False
        self.clients = 0
        # Requests that failed while a command was under way that may cut clients off.
        self.cut = []

    def now(self, block):
        return self.live.get(block, {ZERO})


class Snapshot:
    def __init__(self, volume, name, content):
        self.volume, self.name, self.content, self.blocks = volume, name, content, volume.blocks
        self.clones = set()

    def full(self):
        return self.volume.name + "@" + self.name


def copied(content):
    return {block: set(numbers) for block, numbers in content.items()}


class Family:
    def __init__(self, number, seed):
        self.number = number
        self.rng = random.Random(seed)
        self.lock = threading.RLock()
        self.volumes = []
        # Pairs of snapshots, the first of which is the received copy of the second.
        self.copies = []
        self.serial = 0
        self.writes = 0
        # Client -> its changes in order, while a snapshot is taken; None once one of them failed.
        self.history = None

    def who(self):
        return "family %d" % self.number

    def fresh(self, kind):
        self.serial += 1
        return "%s%d-%d" % (kind, self.number, self.serial)

    # ------------------------------------------------------------------ clients

    def run_client(self, client, seed):
        rng = random.Random(seed)
        while not ended.is_set():
            with self.lock:
                open_ones = [volume for volume in self.volumes if not volume.is_closed]
                volume = rng.choice(open_ones) if open_ones else None
                if volume:
                    volume.clients += 1
                    name = volume.name
            if not volume:
                time.sleep(0.05)
                continue
            link = None
            try:
                link = Client(name)
                until = time.time() + rng.choice([0.05, 0.5, 2, 6])
                while time.time() < until and not ended.is_set():
                    self.request(client, volume, link, rng)
                    if rng.random() < 0.02:
                        time.sleep(rng.random() * 0.2)
            except (Cut, Refused) as error:
                note("client", client, name, repr(error))
                time.sleep(0.03)
            except Exception:
                fail(traceback.format_exc())
            finally:
                if link:
                    link.close()
                with self.lock:
                    volume.clients -= 1
                    volume.under_way.pop(client, None)

    def request(self, client, volume, link, rng):
        kind = rng.choice([WRITE] * 7 + [READ] * 4 + [ZEROES, TRIM, FLUSH])
        with self.lock:
            blocks = min(volume.usable, link.size // BLOCK)
            chunk = 2 * rng.randrange(max(1, blocks // CHUNK // 2)) + client
            if rng.random() < 0.5:
                chunk = chunk % 8 // 2 * 2 + client
            if (chunk + 1) * CHUNK > blocks:
                return
            first = chunk * CHUNK + rng.randrange(CHUNK)
            span = range(first, first + rng.randrange(1, (chunk + 1) * CHUNK - first + 1))
            is_durable = kind == WRITE and rng.random() < 0.15
            if kind == FLUSH:
                mine = [b for b in volume.live if b // CHUNK % 2 == client]
                before = {b: set(volume.live[b]) for b in mine}
            elif kind != READ:
                number = self.begin(client, volume, span, kind, rng)
        try:
            if kind == FLUSH:
                link.ask(FLUSH, 0, 0)
                with self.lock:
                    volume.kept.update(before)
            elif kind == READ:
                self.judge(volume, span, link.read(first, len(span)))
            else:
                data = expanded(number) * len(span) if kind == WRITE else b""
                flags = FUA if is_durable else 0
                if kind == ZEROES:
                    may_be_fast = link.flags & SEND_FAST_ZERO
                    flags = rng.choice([0, NO_HOLE, FAST_ZERO if may_be_fast else 0])
                link.ask(kind, first * BLOCK, len(span) * BLOCK, data, flags)
                with self.lock:
                    volume.under_way.pop(client, None)
                    for block in span:
                        # What was trimmed reads as zeroes or as it was.
                        old = volume.now(block) if kind == TRIM else set()
                        volume.live[block] = old | {number}
                        if is_durable:
                            volume.kept[block] = {number}
        except (Cut, Refused) as error:
            with self.lock:
                if kind not in (READ, FLUSH):
                    for block in span:
                        volume.live[block] = volume.now(block) | {number}
                    if self.history is not None:
                        self.history[client] = None
                usual = error.args[0] in (EINVAL, ENOSPC, ESHUTDOWN)
                if volume.is_closed and not usual:
                    volume.cut.append(error)
                    usual = True
            if isinstance(error, Refused) and not usual:
                fail("%s: request %d at block %d fails: %s" % (volume.name, kind, first, error))
            raise

    def begin(self, client, volume, span, kind, rng):
        """The number of a change that is about to be asked for."""
        number = ZERO
        if kind == WRITE:
            self.writes += 1
            mine = struct.pack(">QQ", (self.number + 1) << 48, self.writes)
            number = rng.choice(COMMON) if rng.random() < 0.15 else mine
        volume.under_way[client] = (span, number)
        for block in span:
            volume.kept.setdefault(block, {ZERO}).add(number)
            volume.changes[block] += 1
            if volume.recorded is not None:
                volume.recorded.setdefault(block, set(volume.now(block))).add(number)
        if self.history is not None and self.history[client] is not None:
            self.history[client].append((volume, span, number, kind))
        return number

    def judge(self, volume, span, numbers):
        with self.lock:
            for block, number in zip(span, numbers):
                may = volume.now(block)
                if number not in may:
                    text = "%s: block %d reads %s, not %s"
                    fail(text % (volume.name, block, shown([number]), shown(may)))
                volume.live[block] = {number}

    # ------------------------------------------------------------------ reading whole volumes

    def whole(self, name, blocks):
        link = Client(name)
        try:
            if link.size != blocks * BLOCK:
                fail("%s has %d bytes, not %d" % (name, link.size, blocks * BLOCK))
            numbers = []
            for first in range(0, blocks, 256):
                numbers += link.read(first, min(256, blocks - first))
            return numbers
        finally:
            link.close()

    def judge_snapshot(self, snapshot, name=None):
        """Reads a snapshot, or what was made of it. From then on it is known exactly."""
        name = name or snapshot.full()
        numbers = self.whole(name, snapshot.blocks)
        for block, number in enumerate(numbers):
            may = snapshot.content.get(block, {ZERO})
            if number not in may:
                fail("%s: block %d reads %s, not %s" % (name, block, shown([number]), shown(may)))
        snapshot.content = {block: {number} for block, number in enumerate(numbers)}

    def judge_volume(self, volume):
        """Reads a volume beside its clients: blocks that nothing changes meanwhile are judged."""

        def quiet():
            busy = {block for span, _ in volume.under_way.values() for block in span}
            return {b: volume.changes[b] for b in range(volume.blocks) if b not in busy}

        with self.lock:
            before, blocks = quiet(), volume.blocks
        try:
            numbers = self.whole(volume.name, blocks)
        except (Cut, Refused) as error:
            return note(volume.name, "is not read:", repr(error))
        with self.lock:
            after = quiet()
            same = [b for b in range(blocks) if b in before and before[b] == after.get(b)]
            self.judge(volume, same, [numbers[b] for b in same])

    # ------------------------------------------------------------------ the administrator

    def run_administrator(self):
        while not ended.is_set():
            try:
                with gate:
                    self.step()
            except Cut as error:
                note(self.who(), repr(error))
            except Exception:
                fail(traceback.format_exc())
            time.sleep(self.rng.random() * 0.2)

    def step(self):
        rng, volumes = self.rng, list(self.volumes)
        snapshots = [snapshot for volume in volumes for snapshot in volume.snapshots]
        if len(volumes) < 2 and (not snapshots or rng.random() < 0.5):
            return self.create()
        if not snapshots:
            return self.snapshot(rng.sample(volumes, rng.choice([1, len(volumes)])))
        volume, snapshot = rng.choice(volumes), rng.choice(snapshots)
        choices = [
            (1, self.create),
            (4, lambda: self.snapshot(rng.sample(volumes, rng.choice([1, 1, len(volumes)])))),
            (1, lambda: self.judge_snapshot(snapshot)),
            (2, lambda: self.judge_volume(volume)),
            (3, lambda: self.roll_back(snapshot)),
            (2, lambda: self.clone(snapshot)),
            (2, lambda: self.promote(volume)),
            (1, lambda: self.rename(volume)),
            (1, lambda: self.rename_snapshot(snapshot)),
            (2, lambda: self.destroy_snapshot(snapshot)),
            (1, lambda: self.destroy(volume)),
            (2, lambda: self.resize(volume)),
            (2, lambda: self.set(volume)),
            (2, lambda: self.send(snapshot)),
            (2, self.send_again),
            (1, lambda: self.hold(snapshot)),
        ]
        weights = [weight for weight, _ in choices]
        rng.choices([choice for _, choice in choices], weights)[0]()

    def ask(self, *words):
        return command("volume", *words, who=self.who())[0] == 0

    def some(self, *flags):
        return [flag for flag in flags if self.rng.random() < 0.5]

    def create(self):
        if len(self.volumes) >= 5:
            return
        name, blocks = "p/" + self.fresh("f"), self.rng.choice([256, 512, 1024])
        options = self.some("compression=lz4", "dedup=on", "cache_writes=on")
        words = [word for option in options for word in ("-o", option)]
        sparse = ["-s"] if options and self.rng.random() < 0.8 else self.some("-s")
        if self.ask("create", "-V", str(blocks * BLOCK), *sparse, *words, name):
            with self.lock:
                self.volumes.append(Volume(name, blocks))

    def snapshot(self, volumes):
        name = self.fresh("s")
        with self.lock:
            self.history = {0: [], 1: []}
            content = {}
            for volume in volumes:
                content[volume], volume.recorded = copied(volume.live), {}
                for span, number in volume.under_way.values():
                    for block in span:
                        volume.recorded[block] = volume.now(block) | {number}
        is_taken = self.ask("snapshot", *["%s@%s" % (volume.name, name) for volume in volumes])
        with self.lock:
            history, self.history = self.history, None
            for volume in volumes:
                content[volume].update(volume.recorded)
                volume.recorded = None
            if not is_taken:
                return
            made = {volume: Snapshot(volume, name, content[volume]) for volume in volumes}
            for volume, snapshot in made.items():
                volume.snapshots.append(snapshot)
        for snapshot in made.values():
            self.judge_snapshot(snapshot)
        for changes in history.values():
            if changes is not None:
                self.judge_instant(made, [change for change in changes if change[0] in made])

    def judge_instant(self, made, changes):
        """A change that is there demands those that its client had been answered before it."""
        last = -1
        for at, (volume, span, number, _) in enumerate(changes):
            is_one = number != ZERO and number not in COMMON
            if is_one and any(made[volume].content.get(b) == {number} for b in span):
                last = at
        due = {}
        for at, (volume, span, number, kind) in enumerate(changes):
            for block in span:
                earlier = due.get((volume, block))
                # A trim leaves what was there, and what comes later may be there.
                if at > last or kind == TRIM:
                    if earlier is not None:
                        earlier.add(number)
                else:
                    due[volume, block] = {number}
        for (volume, block), may in due.items():
            found = made[volume].content.get(block, {ZERO})
            if not found <= may:
                text = "%s is of no instant: block %d has %s, not %s"
                fail(text % (made[volume].full(), block, shown(found), shown(may)))

    def taken_away(self, volume, take):
        """Runs a command that clients make way for, or that cuts them off. Whether it was done."""
        with self.lock:
            volume.is_closed, volume.cut = True, []
        is_done = take()
        if not is_done and volume.cut:
            fail("a refused command cut clients of %s off: %r" % (volume.name, volume.cut))
        if is_done:
            until = time.time() + HANG_SECONDS
            while volume.clients:
                time.sleep(0.01)
                if time.time() > until:
                    return fail("clients do not leave " + volume.name)
        return is_done

    def roll_back(self, snapshot):
        volume, flags = snapshot.volume, self.some("-r", "-f")
        newer = volume.snapshots[volume.snapshots.index(snapshot) + 1 :]
        if self.taken_away(volume, lambda: self.ask("rollback", *flags, snapshot.full())):
            with self.lock:
                if newer and "-r" not in flags or any(later.clones for later in newer):
                    fail("a rollback to %s passes snapshots" % snapshot.full())
                for later in newer:
                    volume.snapshots.remove(later)
                volume.blocks = volume.usable = snapshot.blocks
                volume.live, volume.kept = copied(snapshot.content), copied(snapshot.content)
            self.judge_volume(volume)
        volume.is_closed = False

    def clone(self, snapshot):
        name = "p/" + self.fresh("f")
        if len(self.volumes) < 5 and self.ask("clone", snapshot.full(), name):
            with self.lock:
                clone = Volume(name, snapshot.blocks, snapshot.content, snapshot)
                snapshot.clones.add(clone)
                self.volumes.append(clone)

    def promote(self, clone):
        if not clone.origin:
            return
        origin, parent = clone.origin, clone.origin.volume
        if self.ask("promote", *self.some("-f"), clone.name):
            with self.lock:
                at = parent.snapshots.index(origin) + 1
                moved, parent.snapshots = parent.snapshots[:at], parent.snapshots[at:]
                for snapshot in moved:
                    snapshot.volume = clone
                clone.snapshots = moved + clone.snapshots
                origin.clones.discard(clone)
                clone.origin, parent.origin = parent.origin, origin
                if clone.origin:
                    clone.origin.clones.discard(parent)
                    clone.origin.clones.add(clone)
                origin.clones.add(parent)

    def rename(self, volume):
        name = "p/" + self.fresh("f")
        words = ["rename", *self.some("-f"), volume.name, name]
        if self.taken_away(volume, lambda: self.ask(*words)):
            volume.name = name
            self.judge_volume(volume)
        volume.is_closed = False

    def rename_snapshot(self, snapshot):
        name = self.fresh("s")
        if self.ask("rename", snapshot.full(), snapshot.volume.name + "@" + name):
            snapshot.name = name

    def destroy_snapshot(self, snapshot):
        if self.ask("destroy", snapshot.full()):
            if snapshot.clones:
                fail("%s was destroyed and has clones" % snapshot.full())
            snapshot.volume.snapshots.remove(snapshot)

    def destroy(self, volume):
        flags = self.some("-r", "-f")
        if self.taken_away(volume, lambda: self.ask("destroy", *flags, volume.name)):
            has_clones = any(snapshot.clones for snapshot in volume.snapshots)
            if has_clones or volume.snapshots and "-r" not in flags:
                fail("%s was destroyed and has snapshots" % volume.name)
            with self.lock:
                self.volumes.remove(volume)
                if volume.origin:
                    volume.origin.clones.discard(volume)
            return
        volume.is_closed = False

    def resize(self, volume):
        blocks = self.rng.choice([128, 256, 512, 777, 1024])
        with self.lock:
            volume.usable = min(volume.blocks, blocks)
        while any(span.stop > blocks for span, _ in list(volume.under_way.values())):
            time.sleep(0.005)
        flags = [] if self.rng.random() < 0.2 else ["-f"]
        is_done = self.ask("resize", *flags, "-V", str(blocks * BLOCK), volume.name)
        with self.lock:
            if is_done:
                volume.blocks = blocks
                for content in (volume.live, volume.kept):
                    for block in [block for block in content if block >= blocks]:
                        del content[block]
            volume.usable = volume.blocks

    def set(self, volume):
        properties = (
            "compression=off compression=lz4 compression=zstd-3 dedup=on dedup=off dedup=verify "
            "cache_writes=on cache_writes=off primarycache=none primarycache=all weight=1 weight=900 "
            "iops_limit=50 iops_limit=none iops_limit=none bandwidth_limit=1M bandwidth_limit=none "
            "bandwidth_limit=none sync=always sync=standard reservation=none reservation=auto"
        )
        self.ask("set", self.rng.choice(properties.split()), volume.name)

    def hold(self, snapshot):
        if self.ask("hold", "kept", snapshot.full()):
            if self.ask("destroy", snapshot.full()):
                fail("%s was held, and is destroyed" % snapshot.full())
            if not self.ask("release", "kept", snapshot.full()):
                fail("%s is not released" % snapshot.full())

    def send(self, snapshot):
        """To another pool, where the copy is destroyed, or within the pool, where it may stay."""
        stays = len(self.volumes) < 5 and self.rng.random() < 0.5
        copy = ("p/" if stays else "q/") + self.fresh("f")
        others = snapshot.volume.snapshots
        at = others.index(snapshot)
        older = self.rng.choice(others[:at]) if at and self.rng.random() < 0.5 else None
        first = older or snapshot
        flags = self.some("-c")
        if not sent([*flags, first.full()], copy, self.who()):
            return
        self.judge_snapshot(first, "%s@%s" % (copy, first.name))
        received = [first]
        if older:
            if sent([*flags, "-i", "@" + older.name, snapshot.full()], copy, self.who()):
                self.judge_snapshot(snapshot, "%s@%s" % (copy, snapshot.name))
                self.judge_snapshot(older, "%s@%s" % (copy, older.name))
                received.append(snapshot)
        if stays:
            with self.lock:
                volume = Volume(copy, received[-1].blocks, received[-1].content)
                for source in received:
                    volume.snapshots.append(Snapshot(volume, source.name, copied(source.content)))
                    volume.snapshots[-1].blocks = source.blocks
                self.copies.append((volume.snapshots[-1], received[-1]))
                self.volumes.append(volume)
            self.judge_volume(volume)
        elif not self.ask("destroy", "-r", copy):
            fail("%s cannot be destroyed" % copy)

    def send_again(self):
        """An increment onto a copy whose newest snapshot both have."""
        def fits(base, source):
            is_newest = base.volume.snapshots[-1:] == [base] and base.volume in self.volumes
            return is_newest and source in source.volume.snapshots[:-1]

        pairs = [pair for pair in self.copies if fits(*pair)]
        if not pairs:
            return
        base, source = self.rng.choice(pairs)
        others, copy = source.volume.snapshots, base.volume
        later = self.rng.choice(others[others.index(source) + 1 :])
        words = [*self.some("-c"), "-i", "@" + source.name, later.full()]
        if self.taken_away(copy, lambda: sent(words, copy.name, self.who(), ["-F"])):
            with self.lock:
                received = Snapshot(copy, later.name, copied(later.content))
                received.blocks = copy.blocks = copy.usable = later.blocks
                copy.snapshots.append(received)
                copy.live, copy.kept = copied(later.content), copied(later.content)
                self.copies.append((received, later))
            self.judge_snapshot(later, received.full())
            self.judge_volume(copy)
        copy.is_closed = False

"""A load whose whole history is known, and the judgement of what is found after a crash.

Every sector carries the number of the operation that wrote it. Volumes of kind "serial" have one
operation at a time (writes at any sector, FUA, flushes, trims, zeroes): the volume must then be exactly
what some beginning of the history gives, and that beginning must include everything acknowledged as
durable. Volumes of kind "deep" have several writes in flight, never two at one place: a write that is
found demands every write that was answered before it was sent, and each is there whole or not at all.

The judgement does not see the pool's code; `ledger.Connection` speaks the protocol.

    stamps.py load SOCKET FILE SECONDS SEED EXPORT=KIND...   until the server dies, within SECONDS
    stamps.py judge SOCKET FILE                              what is found after that
"""
import os
import pickle
import random
import select
import struct
import sys
import time

from ledger import Connection, FUA

SECTOR = 512
READ, WRITE, FLUSH, TRIM, ZEROES = 0, 1, 3, 4, 6


def stamp(volume, sector, number):
    return struct.pack(">QQ", volume << 48 | sector, number) * 32


def stamps(volume, first, count, number):
    return b"".join(stamp(volume, first + i, number) for i in range(count))


class Operation:
    __slots__ = ("number", "kind", "first", "count", "fua", "sent", "answered")

    def __init__(self, number, kind, first, count, fua, sent):
        self.number, self.kind, self.first, self.count = number, kind, first, count
        self.fua, self.sent, self.answered = fua, sent, None


class Volume:
    """One volume, its connection, and the history of what was asked and answered."""

    def __init__(self, identity, path, export, kind, seed, depth):
        self.identity, self.path, self.export, self.kind = identity, path, export, kind
        self.rng = random.Random(seed)
        self.depth = 1 if kind == "serial" else depth
        self.history = []
        self.flying = {}
        self.sectors = 0
        self.link = None
        self.given = None

    def connect(self):
        self.link = Connection(self.path, self.export)
        self.sectors = self.link.size // SECTOR
        self.flying = {}

    def writers(self):
        """What each sector was given: sector -> [(operation, what it leaves there)]."""
        if self.given is None:
            self.given = {}
            for o in self.history:
                for sector in range(o.first, o.first + o.count):
                    left = o.number if o.kind == WRITE else 0
                    self.given.setdefault(sector, []).append((o.number, left))
        return self.given

    def draw(self):
        """(kind, first, count, fua) of an operation."""
        rng = self.rng
        if self.kind == "deep":
            if rng.random() < 0.06:
                return FLUSH, 0, 0, False
            while True:
                first = rng.randrange(self.sectors // 8) * 8
                count = 8 * rng.choice((1, 1, 2, 4))
                first = min(first, self.sectors - count)
                if all(o.kind == FLUSH or first + count <= o.first or o.first + o.count <= first
                       for o in self.flying.values()):
                    return WRITE, first, count, rng.random() < 0.5
        kind = rng.choices((WRITE, FLUSH, TRIM, ZEROES), (80, 8, 6, 6))[0]
        if kind == FLUSH:
            return FLUSH, 0, 0, False
        count = rng.choices((1, 8, 64, 2048), (4, 8, 3, 0.2))[0]
        count = min(count, self.sectors // 4) if count > 64 else rng.randint(1, count)
        first = rng.randrange(self.sectors - count - 8)
        if kind == TRIM:
            first, count = first & ~7, (count + 7) & ~7  # less than a block is nobody's promise
        elif rng.random() < 0.5:
            first &= ~7
        return kind, first, count, rng.random() < 0.35

    def start(self, clock):
        kind, first, count, fua = self.draw()
        number = len(self.history) + 1
        operation = Operation(number, kind, first, count, fua, clock)
        self.history.append(operation)
        self.flying[number] = operation
        data = stamps(self.identity, first, count, number) if kind == WRITE else b""
        self.link.send(FUA if fua and kind != FLUSH else 0, kind, number, first * SECTOR,
                       count * SECTOR, data)

    def answer(self, clock):
        error, number = self.link.reply()
        operation = self.flying.pop(number)
        if error:
            raise OSError("%s: operation %d was answered with error %d"
                          % (self.export, number, error))
        operation.answered = clock


def load(volumes, seconds, marks=None, until_end=False, told=None):
    """Loads the volumes. The clock counts sends and answers; after each answer its time goes to
    `marks`. With `until_end` the load ends when a connection does, and that must happen. The count of
    answers is kept in the file `told`."""
    clock = answers = 0
    for volume in volumes:
        if volume.link is None:
            volume.connect()
        for _ in range(volume.depth):
            clock += 1
            volume.start(clock)
    owners = {volume.link.socket: volume for volume in volumes}
    end = time.monotonic() + seconds
    stopped = False
    while True:
        if not stopped and time.monotonic() >= end:
            stopped = True
            if until_end:
                raise OSError("the server was to end, and lived")
        if stopped and not any(v.flying for v in volumes) and not (marks and marks.busy):
            return
        wait = list(owners) + ([marks.socket] if marks else [])
        ready, _, _ = select.select(wait, [], [], 30)
        if not ready:
            raise OSError("no answer for 30 s")
        for sock in ready:
            if marks and sock is marks.socket:
                marks.ready()
                continue
            volume = owners[sock]
            try:
                clock += 1
                volume.answer(clock)
                if told is not None:
                    answers += 1
                    os.pwrite(told, b"%-12d" % answers, 0)
                if marks:
                    marks.want(clock)
                if not stopped:
                    clock += 1
                    volume.start(clock)
            except (EOFError, ConnectionError):
                if until_end:
                    return
                raise


def durable(history, now):
    """The operations that were acknowledged as durable at time `now`: FUA, or answered before a flush
    was sent that was answered."""
    covered = 0
    for o in history:
        if o.kind == FLUSH and o.answered is not None and o.answered <= now:
            covered = max(covered, o.sent)
    return [o for o in history if o.kind != FLUSH and o.answered is not None and
            (o.answered < covered or o.fua and o.answered <= now)]


def read_volume(volume, path):
    link = Connection(path, volume.export)
    step, parts = 1 << 20, []
    for at in range(0, link.size, step):
        link.send(0, READ, 1, at, min(step, link.size - at))
        error, _ = link.reply()
        if error:
            raise OSError("%s: reading at %d gives error %d" % (volume.export, at, error))
        parts.append(link.take(min(step, link.size - at)))
    link.socket.close()
    return b"".join(parts)


def found_numbers(volume, content):
    """The operation that each sector names, 0 for zeros. Raises on anything else."""
    numbers = []
    zeros = bytes(SECTOR)
    for sector in range(len(content) // SECTOR):
        piece = content[sector * SECTOR:(sector + 1) * SECTOR]
        if piece == zeros:
            numbers.append(0)
            continue
        number = struct.unpack(">Q", piece[8:16])[0]
        if piece != stamp(volume.identity, sector, number):
            raise ValueError("%s, sector %d holds what nobody wrote there: %s..."
                             % (volume.export, sector, piece[:16].hex()))
        numbers.append(number)
    return numbers


def judge(volume, content, now):
    """Raises ValueError with what is wrong; returns how many operations the found beginning has."""
    numbers = found_numbers(volume, content)
    return (judge_serial if volume.kind == "serial" else judge_deep)(volume, numbers, now)


def judge_serial(volume, numbers, now):
    writers = volume.writers()
    last = len(volume.history)
    everything = (1 << last + 1) - 1
    possible = everything  # bit k: the first k operations give what is found
    for sector, found in enumerate(numbers):
        fits, since, holds = 0, 0, 0
        for number, left in writers.get(sector, ()):
            if holds == found:
                fits |= (1 << number) - (1 << since)
            since, holds = number, left
        if holds == found:
            fits |= everything & ~((1 << since) - 1)
        if fits == 0:
            raise ValueError("%s, sector %d holds operation %d, which never wrote there"
                             % (volume.export, sector, found))
        if possible & fits == 0:
            raise ValueError("%s is no beginning of its history: sector %d holds operation %d, and the "
                             "sectors before it fit only after %d operations"
                             % (volume.export, sector, found, possible.bit_length() - 1))
        possible &= fits
    reached = possible.bit_length() - 1
    promised = max((o.number for o in durable(volume.history, now)), default=0)
    if reached < promised:
        raise ValueError("%s has its first %d operations, and %d were acknowledged as durable"
                         % (volume.export, reached, promised))
    return reached


def judge_deep(volume, numbers, now):
    """Numbers are in order of sending; at one sector, in order of effect as well."""
    horizon = 0
    for sector, number in enumerate(numbers):
        if number == 0:
            continue
        o = volume.history[number - 1]
        if not o.first <= sector < o.first + o.count:
            raise ValueError("%s, sector %d holds operation %d, which never wrote there"
                             % (volume.export, sector, number))
        horizon = max(horizon, o.sent)
    promised = {o.number for o in durable(volume.history, now)}
    there = 0
    for o in volume.history:
        if o.kind != WRITE:
            continue
        held = numbers[o.first:o.first + o.count]
        missing = [n for n in held if n < o.number]
        if missing and o.number in promised:
            raise ValueError("%s: write %d was acknowledged as durable and is not there: its sectors "
                             "hold %s" % (volume.export, o.number, held[:9]))
        if missing and o.number in held:
            raise ValueError("%s: write %d is torn: its sectors hold %s"
                             % (volume.export, o.number, held[:9]))
        if missing and o.answered is not None and o.answered < horizon:
            raise ValueError("%s: write %d is not there, and a write that was sent after its answer is"
                             % (volume.export, o.number))
        there += not missing
    return there


def main():
    action, path, file = sys.argv[1:4]
    try:
        if action == "load":
            seconds, seed = float(sys.argv[4]), int(sys.argv[5])
            words = [word.split("=") for word in sys.argv[6:]]
            volumes = [Volume(i + 1, path, export, kind, seed * 10 + i, 8)
                       for i, (export, kind) in enumerate(words)]
            told = os.open(file + ".told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            load(volumes, seconds, until_end=True, told=told)
            for volume in volumes:
                volume.link = None
            with open(file, "wb") as out:
                pickle.dump(volumes, out)
            print("stamps: %d operations" % sum(len(v.history) for v in volumes))
        else:
            with open(file, "rb") as source:
                volumes = pickle.load(source)
            for volume in volumes:
                reached = judge(volume, read_volume(volume, path), float("inf"))
                print("stamps: %s: %d of %d operations are there"
                      % (volume.export, reached, len(volume.history)))
    except (OSError, ValueError, EOFError) as reason:
        sys.exit("stamps: %s" % reason)


if __name__ == "__main__":
    # Histories are read back by other programs: they must not be of a module named __main__.
    import stamps
    stamps.main()

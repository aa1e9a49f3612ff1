"""Write logs of recorded devices: what qemu's blklogwrites leaves, in the format of dm-log-writes.

Several devices share one order of time: each has a log of its own, and these logs, as slices of one
large device, are logged once more by a master. An entry of the master is a piece of a device's log, or
a mark that a client wrote. One file then holds everything, in the order in which it happened.
`recorder` builds that arrangement, `events` reads it."""
import os
import socket
import struct
import subprocess
import time

MAGIC = 0x6A736677736872
ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
SLICE = 1 << 36
SECTOR = 512


def entries(path, base=0):
    """(sector, count, flags, data) of each entry. A header of zeros is the end: the count in the
    superblock is only kept up to date by flushes."""
    with open(path, "rb") as source:
        magic, version, _count, sector_bytes = struct.unpack("<QQQI", source.read(28))
        if magic != MAGIC or version != 1 or sector_bytes != SECTOR:
            raise ValueError("%s is no write log" % path)
        at = SECTOR
        while True:
            source.seek(at)
            head = source.read(ENTRY.size)
            if len(head) < ENTRY.size:
                return
            sector, count, flags, _ = ENTRY.unpack(head)
            if count == 0 and flags == 0:
                return
            at += SECTOR
            data = b""
            if not flags & DISCARD and count:
                source.seek(at)
                data = source.read(count * SECTOR)
                at += count * SECTOR
            yield sector, count, flags, data


def events(path, devices):
    """What happened, in order: ("write", device, offset, data, fua), ("zero", device, offset, length),
    ("flush", device), ("mark", number). Raises when the record is not whole."""
    heads = [{} for _ in range(devices)]  # entries of zeroes, whose data comes as a piece of its own
    for sector, count, _flags, data in entries(path):
        if not count:
            continue  # the master's own flushes
        which, inside = divmod(sector * SECTOR, SLICE)
        if which == devices:
            yield ("mark", struct.unpack(">Q", data[:8])[0])
            continue
        inside //= SECTOR
        if inside == 0:
            continue  # the superblock of the device's log
        # Pieces of a device's log may end out of order; when they are here is what counts.
        zeroes = next((h for h in heads[which] if h <= inside < h + heads[which][h][1]), None)
        if zeroes is not None:
            heads[which][zeroes][2] -= count
            if heads[which][zeroes][2] == 0:
                at, length, _ = heads[which].pop(zeroes)
                yield ("zero", which, at * SECTOR, length * SECTOR)
            continue
        at, length, kind, _ = ENTRY.unpack(data[:ENTRY.size])
        if kind & DISCARD:
            yield ("zero", which, at * SECTOR, length * SECTOR)
        elif length and count == 1:
            heads[which][inside + 1] = [at, length, length]
        elif count == 1 + length and kind & (FLUSH | FUA) == kind:
            if length:
                yield ("write", which, at * SECTOR, data[SECTOR:], bool(kind & FUA))
        else:
            raise ValueError("device %d: a piece of %d sectors with an entry of %d, flags %d"
                             % (which, count, length, kind))
        if kind & FLUSH:
            yield ("flush", which)


class Recorder:
    """Two qemu-storage-daemons: one records, the other serves each file, and nbdfuse shows it as a
    device. The daemon's own FUSE export is no way to do it: up to QEMU 10.0 it reads the next request
    into the buffer of a write that is still under way, and writes of several in flight are mixed up."""

    def __init__(self, folder, run, files, served=True):
        self.folder, self.run = folder, run
        self.log = os.path.join(folder, "master.log")
        self.socket = os.path.join(run, "m")
        self.processes, self.devices, self.mounts = [], [], []
        with open(self.log, "wb") as out:
            out.truncate(1 << 40)
        slices = len(files) + 1
        command = ["qemu-storage-daemon",
                   "--blockdev", "driver=file,node-name=log,filename=" + self.log,
                   "--blockdev", "driver=null-co,node-name=none,size=%d" % (slices * SLICE),
                   "--blockdev", "driver=blklogwrites,node-name=master,file=none,log=log",
                   "--nbd-server", "addr.type=unix,max-connections=64,addr.path=" + self.socket]
        for i in range(slices):
            command += ["--blockdev", "driver=raw,node-name=s%d,file=master,offset=%d,size=%d"
                        % (i, i * SLICE, SLICE),
                        "--export", "nbd,id=x%d,node-name=s%d,name=s%d,writable=on" % (i, i, i)]
        self.start(command, lambda: os.path.exists(self.socket))
        self.marks = "s%d" % len(files)
        if served:
            self.serve(files)

    def nodes(self, files):
        """The arguments that make recorded block nodes d0, d1, ..., for a qemu of any kind."""
        words = []
        for i, path in enumerate(files):
            words += ["-blockdev", "driver=file,node-name=f%d,filename=%s,discard=unmap" % (i, path),
                      "-blockdev", "driver=nbd,node-name=l%d,server.type=unix,server.path=%s,"
                      "export=s%d" % (i, self.socket, i),
                      "-blockdev", "driver=blklogwrites,node-name=d%d,file=f%d,log=l%d,discard=unmap"
                      % (i, i, i)]
        return words

    def serve(self, files):
        """Shows each file as a recorded device."""
        served = os.path.join(self.run, "v")
        command = ["qemu-storage-daemon",
                   "--nbd-server", "addr.type=unix,max-connections=64,addr.path=" + served]
        command += ["-" + w if w == "-blockdev" else w for w in self.nodes(files)]
        for i in range(len(files)):
            command += ["--export", "nbd,id=x%d,node-name=d%d,name=d%d,writable=on" % (i, i, i)]
        self.start(command, lambda: os.path.exists(served))
        for i in range(len(files)):
            folder = os.path.join(self.run, "dev%d" % i)
            os.makedirs(folder)
            seen = os.path.join(folder, "nbd")
            self.mounts.append(folder)
            self.start(["nbdfuse", folder + "/", "nbd+unix:///d%d?socket=%s" % (i, served)],
                       lambda: os.path.exists(seen))
            self.devices.append(seen)

    def start(self, command, ready, patience_s=10):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        for _ in range(patience_s * 20):
            if ready():
                return
            if process.poll() is not None:
                raise RuntimeError("%s ended with %d" % (command[0], process.returncode))
            time.sleep(0.05)
        raise RuntimeError("%s is not ready after %d s" % (command[0], patience_s))

    def stop(self):
        """The devices first: the record must be whole."""
        for folder in self.mounts:
            for _ in range(100):  # a killed server lets go of its files a moment later
                if subprocess.run(["fusermount3", "-u", folder],
                                  stderr=subprocess.DEVNULL).returncode == 0:
                    break
                time.sleep(0.05)
        self.mounts = []
        while self.processes:
            process = self.processes.pop()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Marks:
    """Writes marks into the record, each once the one before it is there."""

    def __init__(self, path, export):
        from ledger import Connection
        self.link = Connection(path, export)
        self.socket = self.link.socket
        self.busy = False
        self.written = self.wanted = 0

    def want(self, number):
        self.wanted = number
        if not self.busy and self.wanted > self.written:
            self.busy = True
            self.written = self.wanted
            self.link.send(0, 1, self.written, 0, SECTOR, struct.pack(">Q", self.written) + bytes(504))

    def ready(self):
        error, _ = self.link.reply()
        if error:
            raise OSError("the mark was refused: error %d" % error)
        self.busy = False
        self.want(self.wanted)

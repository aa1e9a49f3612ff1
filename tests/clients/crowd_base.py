"""What all who take part in a crowd share: connections and commands that may be refused, but not hang."""
import collections
import hashlib
import os
import struct
import subprocess
import sys
import threading
import time

from ledger import Connection

BINARY, FOLDER, SOCKET, SECONDS, SEED = *sys.argv[1:4], float(sys.argv[4]), int(sys.argv[5])
BLOCK = 4096
# Requests and commands that take longer hang.
HANG_SECONDS = 120
READ, WRITE, DISCONNECT, FLUSH, TRIM, ZEROES = 0, 1, 2, 3, 4, 6
ZERO = bytes(16)
# Contents that many blocks share.
COMMON = [bytes([65 + i]) * 16 for i in range(8)]

ended = threading.Event()
failures = []
counts = collections.Counter()
lock = threading.Lock()
begun = time.time()
journal = open("crowd.log", "w")


def note(*words):
    with lock:
        print("%8.3f" % (time.time() - begun), *words, file=journal, flush=True)


def fail(why):
    failures.append(why)
    note("FAIL", why)
    print("%.3f s: %s" % (time.time() - begun, why), flush=True)
    ended.set()


class Cut(Exception):
    """The connection is gone."""


class Refused(Exception):
    """The server answered with an error, or does not know the export."""


class Client:
    """One connection with one request at a time."""

    def __init__(self, export):
        self.export = export
        self.handle = 0
        try:
            self.link = Connection(SOCKET, export)
        except EOFError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Cut(str(error)) from error
        self.size, self.flags = self.link.size, self.link.flags
        self.link.socket.settimeout(HANG_SECONDS)

    def ask(self, kind, offset, length, data=b"", flags=0):
        self.handle += 1
        try:
            self.link.send(flags, kind, self.handle, offset, length, data)
            error, _ = self.link.reply()
            if error:
                raise Refused(error)
            return self.link.take(length) if kind == READ else None
        except TimeoutError as error:
            fail("request %d of %d bytes at %d of %s hangs" % (kind, length, offset, self.export))
            raise Cut("hangs") from error
        except (EOFError, OSError) as error:
            raise Cut(str(error)) from error

    def read(self, first, count):
        """The number of each block."""
        data = self.ask(READ, first * BLOCK, count * BLOCK)
        numbers = []
        for at in range(0, len(data), BLOCK):
            number = data[at : at + 16]
            if data[at : at + BLOCK] != expanded(number):
                fail("%s: block %d is of several writes" % (self.export, first + at // BLOCK))
            numbers.append(number)
        return numbers

    def close(self):
        try:
            self.link.send(0, DISCONNECT, 0, 0, 0)
        except OSError:
            pass
        self.link.socket.close()


def expanded(number):
    """The block that carries a number. What it compresses to follows from the number."""
    noise = 0 if number == ZERO or number in COMMON else (0, 1024, 3072, BLOCK - 16)[number[-1] % 4]
    return number * ((BLOCK - noise) // 16) + hashlib.shake_128(number).digest(noise)


def shown(numbers):
    def one(number):
        if number == ZERO:
            return "zero"
        if number in COMMON:
            return "common %d" % COMMON.index(number)
        return "#%d" % struct.unpack(">QQ", number)[1]

    return " or ".join(sorted(map(one, numbers)))


def command(*words, who="", stdin=subprocess.DEVNULL):
    """Runs a command. It may be refused, in words; it neither hangs nor panics. Its code and output."""
    program = subprocess.Popen(
        [BINARY, *words], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, said = program.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        fail("hangs: forebay " + " ".join(words))
        program.kill()
        return 124, ""
    note(who, program.returncode, *words, "|", said.strip())
    counts["refused" if program.returncode else "done"] += 1
    if program.returncode < 0 or "panicked" in said or (program.returncode and not said.strip()):
        fail("forebay %s: %d %s" % (" ".join(words), program.returncode, said))
    return program.returncode, out


def path(name):
    return os.path.join(FOLDER, name)


def sent(words, volume, who, flags=(), at_most=None):
    """Whether a stream was received, of which `at_most` bytes arrive."""
    send = [BINARY, "volume", "send", *words]
    sender = subprocess.Popen(send, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    source = sender.stdout
    if at_most is not None:
        head = ["head", "-c", str(at_most)]
        cutter = subprocess.Popen(head, stdin=source, stdout=subprocess.PIPE)
        source = cutter.stdout
    code, _ = command("volume", "receive", *flags, volume, who=who, stdin=source)
    source.close()
    sender.stdout.close()
    try:
        sender.wait(HANG_SECONDS)
    except subprocess.TimeoutExpired:
        fail("hangs: " + " ".join(send))
    if at_most is not None:
        cutter.wait()
    return code == 0 and sender.returncode == 0

#!/usr/bin/env python3
"""A client with a memory outside the server: it writes numbered blocks, notes what was answered, and
later checks that every block holds the last answered write or one that was in flight when the
connection broke. No library: the protocol is spoken here, so that no client shares a mistake.

    ledger.py write SOCKET EXPORT LEDGER [--seconds S] [--depth N] [--connections N]
                    [--flush-every N | default FUA] [--span BYTES] [--seed N] [--block BYTES]
                    [--expect-end] [--expect-error] [--told FILE (keeps the count of answers)]
    SOCKET is a path, or HOST:PORT.
    SIGTERM ends a load as the end of a connection does: what is in flight may be there or not.
    ledger.py check SOCKET EXPORT LEDGER
"""
import argparse
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time

WRITE, FLUSH, READ = 1, 3, 0
FUA = 1
ESHUTDOWN = 108  # by the NBD protocol: the server is stopping
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")


class Connection:
    def __init__(self, path, export):
        if "/" in path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(path)
        else:
            host, port = path.split(":")
            self.socket = socket.create_connection((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.take(18)
        self.socket.sendall(struct.pack(">I", 3))
        name = export.encode()
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", 1, len(name)) + name)
        self.size, self.flags = struct.unpack(">QH", self.take(10))

    def take(self, count):
        parts = bytearray()
        while len(parts) < count:
            piece = self.socket.recv(count - len(parts))
            if not piece:
                raise EOFError("the server closed the connection")
            parts += piece
        return bytes(parts)

    def send(self, flags, kind, handle, offset, length, data=b""):
        head = REQUEST.pack(0x25609513, flags, kind, handle, offset, length)
        self.socket.sendall(head + data)

    def reply(self):
        magic, error, handle = REPLY.unpack(self.take(16))
        if magic != 0x67446698:
            raise ValueError("not a simple reply: %x" % magic)
        return error, handle


def content(block, version, size):
    """Every 16 bytes name the block and the version, so that a torn or misplaced block shows."""
    return struct.pack(">QQ", block, version) * (size // 16)


def write(args):
    links = [Connection(args.socket, args.export) for _ in range(args.connections)]
    blocks = min(links[0].size, args.span or links[0].size) // args.block
    rng = random.Random(args.seed)
    durable, answered, flying = {}, {}, {}  # block -> version; handle -> (block, version, link)
    busy = set()
    handle = version = 0
    older = {}
    if os.path.exists(args.ledger):
        # A ledger goes on over several deaths of the server.
        with open(args.ledger) as source:
            before = json.load(source)
        durable = {int(k): v for k, v in before["durable"].items()}
        older = {int(k): v for k, v in before["maybe"].items()}
        version = max(list(durable.values()) + list(older.values()))
    flush_handles = {}
    since_flush = 0
    flushes = errors = answers = 0
    end = time.monotonic() + args.seconds
    broken = ""

    # SIGTERM counts only while this waits for replies: a reply half taken in would be neither answered
    # nor in flight in the ledger, and what it answered would then look like a foreign write.
    told_to_end = waits = False

    def stop(_signal, _frame):
        nonlocal told_to_end
        told_to_end = True
        if waits:
            raise EOFError("told to end")

    signal.signal(signal.SIGTERM, stop)

    def start(link):
        nonlocal handle, version, since_flush
        handle += 1
        if args.flush_every and since_flush >= args.flush_every and not flush_handles:
            # A flush covers what was answered before it was sent, on every connection.
            flush_handles[handle] = dict(answered)
            since_flush = 0
            link.send(0, FLUSH, handle, 0, 0)
            return
        block = rng.randrange(blocks)
        while block in busy:
            block = rng.randrange(blocks)
        busy.add(block)
        version += 1
        since_flush += 1
        flying[handle] = (block, version)
        flags = 0 if args.flush_every else FUA
        link.send(flags, WRITE, handle, block * args.block, args.block,
                  content(block, version, args.block))

    try:
        for link in links:
            for _ in range(args.depth):
                start(link)
        by_socket = {link.socket: link for link in links}
        while time.monotonic() < end:
            waits = True
            if told_to_end:
                raise EOFError("told to end")
            ready, _, _ = select.select(list(by_socket), [], [], 30)
            waits = False
            if not ready:
                print("ledger: no answer for 30 s", file=sys.stderr)
                return 2
            for sock in ready:
                link = by_socket[sock]
                error, which = link.reply()
                if error and (args.expect_error or args.expect_end and error == ESHUTDOWN):
                    # Refused is not answered: it may be there, like what was in flight. A server that
                    # stops answers so what arrives late, before it closes the connection.
                    raise EOFError("the server answered error %d" % error)
                if error:
                    errors += 1
                    print("ledger: the server answered error", error, file=sys.stderr)
                    return 2
                if which in flush_handles:
                    for block, old in flush_handles.pop(which).items():
                        durable[block] = max(durable.get(block, 0), old)
                    flushes += 1
                else:
                    block, number = flying.pop(which)
                    busy.discard(block)
                    if args.flush_every:
                        answered[block] = number
                    else:
                        durable[block] = number
                if args.told is not None and durable:
                    # From the first durable one on: on a busy disk thousands of writes are answered
                    # before the first flush is. Of one length always: a reader sees a number.
                    answers += 1
                    os.pwrite(args.told, b"%-12d" % answers, 0)
                start(link)
    except (EOFError, ConnectionError, BrokenPipeError) as reason:
        broken = str(reason)
    if (args.expect_end or args.expect_error) and not broken:
        print("ledger: the server was to be killed, and lived", file=sys.stderr)
        return 2
    if broken and not args.expect_end and not args.expect_error:
        print("ledger: connection lost:", broken, file=sys.stderr)
        return 2
    if not durable:
        print("ledger: nothing was answered", file=sys.stderr)
        return 2
    # Versions of a block that may be there too: answered but not flushed, or in flight.
    maybe = older
    if broken or args.flush_every:
        for block, number in list(answered.items()) + list(flying.values()):
            maybe[block] = max(maybe.get(block, 0), number)
    elif flying:
        for block, number in flying.values():
            maybe[block] = max(maybe.get(block, 0), number)
    with open(args.ledger, "w") as out:
        json.dump({"block": args.block, "blocks": blocks, "durable": durable, "maybe": maybe}, out)
    print("ledger: %d writes, %d blocks durable, %d flushes, %d in flight at the end"
          % (version, len(durable), flushes, len(flying)))
    return 0


def check(args):
    with open(args.ledger) as source:
        ledger = json.load(source)
    size = ledger["block"]
    durable = {int(k): v for k, v in ledger["durable"].items()}
    maybe = {int(k): v for k, v in ledger["maybe"].items()}
    link = Connection(args.socket, args.export)
    bad = 0
    todo = sorted(set(durable) | set(maybe))
    for first in range(0, len(todo), 16):
        batch = todo[first:first + 16]
        for block in batch:
            link.send(0, READ, block, block * size, size)
        for _ in batch:
            error, block = link.reply()
            if error:
                print("ledger: block %d: error %d" % (block, error))
                bad += 1
                continue
            data = link.take(size)
            low, high = durable.get(block, 0), maybe.get(block, 0)
            held_block, held = struct.unpack(">QQ", data[:16])
            if data.strip(b"\0") == b"" and low == 0:
                continue
            if data != content(block, held, size) or held_block != block:
                print("ledger: block %d is torn, foreign or stale" % block)
                bad += 1
            elif not low <= held <= max(low, high):
                print("ledger: block %d holds write %d, answered was %d" % (block, held, low))
                bad += 1
            if bad > 20:
                return 1
    print("ledger: %d blocks checked, %d bad" % (len(todo), bad))
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("socket")
    parser.add_argument("export")
    parser.add_argument("ledger")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--flush-every", type=int, default=0)
    parser.add_argument("--span", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--block", type=int, default=4096)
    parser.add_argument("--expect-end", action="store_true")
    parser.add_argument("--expect-error", action="store_true")
    parser.add_argument("--told", metavar="FILE", help="keeps the count of answers there")
    args = parser.parse_args()
    if args.told:
        args.told = os.open(args.told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.exit(write(args) if args.action == "write" else check(args))


if __name__ == "__main__":
    main()

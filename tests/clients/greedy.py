#!/usr/bin/env python3
"""Clients that take more than their share, and one that measures what is left to the others.

    greedy.py unread ADDRESS EXPORT COUNT      four reads of 16 MiB each, whose replies nobody takes
    greedy.py reconnect ADDRESS EXPORT COUNT   the same, and a new connection for each that ends or is 2 s old
    greedy.py trickle ADDRESS EXPORT COUNT     reads of 16 MiB, of which 64 KiB are taken each 8 s
    greedy.py upload ADDRESS EXPORT COUNT      writes of 32 MiB, of which 64 KiB are sent each 8 s
    greedy.py idle ADDRESS EXPORT COUNT        connections that ask for nothing
    greedy.py canary ADDRESS EXPORT SECONDS    4 KiB FUA writes, one after the other; prints JSON

ADDRESS is a path, or HOST:PORT. With --uid N the process becomes that user first. All but the canary run until
they are killed, and write "ready N" when N connections have begun.
"""
import encodings.idna  # noqa: F401 - the user that the process becomes may not read it
import json
import os
import resource
import select
import socket
import struct
import sys
import time

REQUEST = struct.Struct(">IHHQQI")
MAGIC = 0x25609513
MIB = 1 << 20


def connect(address, export, seconds=30):
    if "/" in address:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(seconds)
        s.connect(address)
    else:
        host, port = address.rsplit(":", 1)
        s = socket.socket(socket.AF_INET)
        s.settimeout(seconds)
        s.connect((host, int(port)))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    take(s, 18)
    name = export.encode()
    s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, len(name)) + name)
    take(s, 10)
    return s


def take(s, count):
    parts = bytearray()
    while len(parts) < count:
        piece = s.recv(count - len(parts))
        if not piece:
            raise EOFError("the server closed the connection")
        parts += piece
    return parts


def canary(address, export, seconds):
    begun = time.monotonic()
    s = connect(address, export)
    connected = time.monotonic() - begun
    s.settimeout(300)
    data = os.urandom(4096)
    spans = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(spans) < 20:
        offset = (len(spans) * 7919 % 4096) * 4096
        sent = time.monotonic()
        s.sendall(REQUEST.pack(MAGIC, 1, 1, len(spans), offset, 4096) + data)
        _, error, _ = struct.unpack(">IIQ", take(s, 16))
        if error:
            sys.exit("the canary's write got error %d" % error)
        spans.append(time.monotonic() - sent)
    spans.sort()
    at = lambda part: round(1000 * spans[min(len(spans) - 1, int(part * len(spans)))], 3)
    print(json.dumps({"writes": len(spans), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1),
                      "connect_ms": round(1000 * connected, 3)}))


def begin(kind, address, export):
    s = connect(address, export)
    if kind in ("unread", "reconnect", "trickle"):
        for i in range(4):
            s.sendall(REQUEST.pack(MAGIC, 0, 0, i, i * 16 * MIB, 16 * MIB))
    if kind == "upload":
        s.sendall(REQUEST.pack(MAGIC, 0, 1, 1, 0, 32 * MIB))
    s.setblocking(False)
    return s


def attack(kind, address, export, count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    live, refused, told = [], 0, False
    while True:
        while len(live) < count and (kind == "reconnect" or len(live) + refused < count):
            try:
                live.append((begin(kind, address, export), time.monotonic()))
            except (OSError, EOFError):
                refused += 1
                if kind == "reconnect":
                    break
        if not told and (len(live) + refused >= count or kind == "reconnect"):
            print("ready", len(live), flush=True)
            told = True
        if kind == "trickle":
            for s, _ in live:
                drip(lambda: s.recv(65536))
        if kind == "upload":
            for s, _ in live:
                drip(lambda: s.send(bytes(65536)))
        if kind == "reconnect":
            old = [s for s, at in live if time.monotonic() - at > 2 or has_ended(s)]
            live = [(s, at) for s, at in live if s not in old]
            for s in old:
                s.close()
        time.sleep(8 if kind in ("trickle", "upload") else 0.01)


def drip(move):
    try:
        move()
    except OSError:
        pass


def has_ended(s):
    # Only whether the server has hung up: nothing is taken.
    poll = select.poll()
    poll.register(s, select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


words = sys.argv[1:]
if "--uid" in words:
    at = words.index("--uid")
    uid = int(words[at + 1])
    del words[at:at + 2]
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
kind, address, export, number = words
if kind == "canary":
    canary(address, export, float(number))
else:
    attack(kind, address, export, int(number))

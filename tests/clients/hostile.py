#!/usr/bin/env python3
"""Clients that a server meets in the open. Each must lose its own connection (or get an error
reply) within some seconds; the caller checks that nobody else noticed.

    hostile.py SOCKET EXPORT
"""
import os
import socket
import struct
import sys

PATH, EXPORT = sys.argv[1], sys.argv[2].encode()
REQUEST = struct.Struct(">IHHQQI")
MAGIC = 0x25609513


def connect():
    s = socket.socket(socket.AF_UNIX)
    # Less than the minute after which a client that takes nothing is given up, and more than a disk that is
    # busy with others lets a flush wait.
    s.settimeout(50)
    s.connect(PATH)
    return s


def take(s, n):
    b = b""
    while len(b) < n:
        piece = s.recv(n - len(b))
        if not piece:
            raise EOFError
        b += piece
    return b


def option(kind, data):
    return b"IHAVEOPT" + struct.pack(">II", kind, len(data)) + data


def session():
    s = connect()
    take(s, 18)
    s.sendall(struct.pack(">I", 3) + option(1, EXPORT))
    size, _flags = struct.unpack(">QH", take(s, 10))
    return s, size


def closed(s, what):
    """The server must end the connection; replies before that are fine."""
    try:
        while s.recv(65536):
            pass
    except (ConnectionError, BrokenPipeError):
        pass
    except socket.timeout:
        sys.exit("%s: the connection is still open after 50 s" % what)
    s.close()


def answered(s, what, errors):
    magic, error, _ = struct.unpack(">IIQ", take(s, 16))
    if magic != 0x67446698 or (error == 0) != (errors == ()) or (errors and error not in errors):
        sys.exit("%s: magic %x, error %d" % (what, magic, error))


def alive(s):
    s.sendall(REQUEST.pack(MAGIC, 0, 0, 1, 0, 512))
    answered(s, "a read after a refused request", ())
    take(s, 512)


count = 0


def case():
    global count
    count += 1


EINVAL, ENOSPC, EOVERFLOW, ENOTSUP, ENOMEM, EIO = 22, 28, 75, 95, 12, 5

# Before a session.
for garbage in [b"GET / HTTP/1.1\r\n\r\n" * 40, b"\xff" * 65536, struct.pack(">I", 0xFFFFFFFF)]:
    s = connect()
    take(s, 18)
    try:
        s.sendall(garbage)
    except (ConnectionError, BrokenPipeError):
        pass
    closed(s, "garbage instead of flags")
    case()
for name, length in [("a 4 GiB option", 0xFFFFFFFF), ("a 100 MB option", 100 << 20)]:
    s = connect()
    take(s, 18)
    s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 7, length))
    try:
        s.sendall(b"z" * 65536)
        s.shutdown(socket.SHUT_WR)
    except (ConnectionError, BrokenPipeError):
        pass
    closed(s, name)
    case()
s = connect()
take(s, 18)
s.sendall(struct.pack(">I", 3) + option(7, struct.pack(">I", 0xFFFFFFF0) + b"x"))
head = take(s, 20)
if struct.unpack(">I", head[12:16])[0] < 0x80000000:
    sys.exit("a name longer than its option was accepted")
s.close()
case()
s = connect()
take(s, 18)
s.sendall(struct.pack(">I", 3) + option(1, b"no/such"))
closed(s, "an export that is not there")
case()

# In a session: a broken frame costs the connection.
s, size = session()
s.sendall(b"\0" * 28)
closed(s, "a request without magic")
case()
s, size = session()
try:
    s.sendall(REQUEST.pack(MAGIC, 1, 1, 7, 0, 0xFFFFFFFF) + b"w" * 200000)
    s.shutdown(socket.SHUT_WR)
except (ConnectionError, BrokenPipeError):
    pass
closed(s, "a write of 4 GiB")
case()

# A request that can be understood is answered with an error, and the session goes on.
for what, flags, kind, offset, length, errors in [
    ("a read of 4 GiB", 0, 0, 0, 0xFFFFFFFF, (EINVAL, EOVERFLOW, ENOMEM)),
    ("a read past the end", 0, 0, size - 512, 1024, (EINVAL,)),
    ("a read that wraps", 0, 0, 0xFFFFFFFFFFFFFE00, 1024, (EINVAL,)),
    ("a trim past the end", 0, 4, size - 4096, 8192, (EINVAL,)),
    ("zeroes past the end", 0, 6, size - 4096, 8192, (EINVAL, ENOSPC)),
    ("an unknown command", 0, 77, 0, 0, (EINVAL, ENOTSUP)),
    ("an unknown flag", 0x8000, 0, 0, 512, (EINVAL,)),
]:
    s, size = session()
    s.sendall(REQUEST.pack(MAGIC, flags, kind, 9, offset, length))
    answered(s, what, errors)
    alive(s)
    s.close()
    case()
for what, offset, length, errors in [
    ("a write past the end", size, 4096, (EINVAL, ENOSPC)),
    ("a write of odd length", 512, 100, (EINVAL,)),
    ("a write at an odd place", 100, 512, (EINVAL,)),
]:
    s, size = session()
    s.sendall(REQUEST.pack(MAGIC, 1, 1, 9, offset, length) + b"w" * length)
    answered(s, what, errors)
    alive(s)
    s.close()
    case()

# Clients that vanish: in the middle of a write's data, of a header, before their replies.
for length in (4096, 1 << 20, 32 << 20):
    s, size = session()
    s.sendall(REQUEST.pack(MAGIC, 1, 1, 7, size - length, length) + b"V" * (length // 2))
    s.close()
    case()
s, size = session()
s.sendall(REQUEST.pack(MAGIC, 0, 0, 7, 0, 4096)[:13])
s.close()
case()
for _ in range(8):
    s, size = session()
    # Reads whose replies nobody takes.
    for i in range(64):
        s.sendall(REQUEST.pack(MAGIC, 0, 0, i, i * 65536, 1 << 20))
    s.close()
    case()
# Half-open ones: they stay while others come and go.
idle = [connect() for _ in range(64)]
for _ in range(32):
    s, size = session()
    alive(s)
    s.close()
case()
# One that reads nothing while it asks for much must not stop the others.
slow, size = session()
slow.setblocking(False)
sent = 0
try:
    for i in range(4096):
        slow.send(REQUEST.pack(MAGIC, 0, 0, i, 0, 4 << 20))
        sent += 1
except BlockingIOError:
    pass
s, size = session()
alive(s)
s.close()
case()
for s in idle:
    s.close()
slow.close()

# Random bytes in the place of requests.
for round_ in range(20):
    s, size = session()
    try:
        s.sendall(struct.pack(">I", MAGIC) + b"\0\0\0\x03" + os.urandom(2000))
        s.shutdown(socket.SHUT_WR)
    except (ConnectionError, BrokenPipeError):
        pass
    closed(s, "random bytes")
    case()
print("%d hostile clients" % count)

#!/usr/bin/env python3
"""Send streams as docs/send-stream.md describes them, read by a program that shares no code with Forebay.

  stream.py check FILE            every record, with its checksum; prints what there is
  stream.py damage FILE OUT HOW   cut | half | flip | swap | drop | twice | behind, at a record in the middle
  stream.py hold FILE BYTES...    passes so many bytes on, then waits for FILE.1, passes more on, waits for FILE.2 ...
"""
import os
import struct
import sys
import time

POLY = 0x9A6C9329AC4BC9B5  # CRC-64/NVME, reflected
TABLE = []
for byte in range(256):
    crc = byte
    for _ in range(8):
        crc = crc >> 1 ^ (POLY if crc & 1 else 0)
    TABLE.append(crc)
HEAD = struct.Struct("<IIQQQQ")


def crc64(data, crc=0):
    crc ^= 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFFFFFFFFFF


def records(data):
    """Where each record begins and ends, after the first 16 bytes."""
    at = 16
    while at < len(data):
        payload = HEAD.unpack_from(data, at)[1]
        yield at, at + 40 + payload
        at += 40 + payload


def blocks_in(payload):
    """Blocks of compressed units."""
    blocks, at = 0, 0
    while at < len(payload):
        codec, count, size = struct.unpack_from("<BBH", payload, at)
        assert codec <= 2 and 1 <= count <= 4 and (codec > 0 or size == count * 4096), (codec, count, size)
        blocks, at = blocks + count, at + 4 + size
    assert at == len(payload), "the last unit is cut"
    return blocks


def check(path):
    data = open(path, "rb").read()
    version = struct.unpack("<II", data[8:16])
    assert data[:8] == b"FBSTREAM" and version in ((1, 0), (2, 3)), data[:16]
    before, number, sums, names = crc64(data[:16]), 0, {2: 0, 3: 0}, []
    kinds = []
    for at, end in records(data):
        kind, _, found, offset, length, stored = HEAD.unpack_from(data, at)
        assert found == number, "record %d says that it is %d" % (number, found)
        head, payload = data[at : at + 32], data[at + 40 : end]
        # Slow in Python: of long payloads only some are checked.
        if len(payload) <= 65536 or number % 16 == 1:
            assert crc64(struct.pack("<Q", before) + head + payload) == stored, "record %d" % number
        assert kind < 5 or version[0] == 2, "kind %d" % kind
        if kind == 5:
            assert blocks_in(payload) * 4096 == length, "units of record %d" % number
        if kind == 6:
            (source,) = struct.unpack("<Q", payload)
            assert source + length <= offset, "record %d is as what comes later" % number
        if kind in (2, 3, 5, 6):
            sums[3 if kind == 3 else 2] += length
        if kind == 1:
            rest = payload[48:]
            for _ in range(3):
                (size,) = struct.unpack_from("<H", rest)
                names.append(rest[2 : 2 + size].decode())
                rest = rest[2 + size :]
        if kind == 4:
            assert struct.unpack("<QQQ", payload) == (number + 1, sums[2], sums[3]), "totals"
        before, number = stored, number + 1
        kinds.append(kind)
    assert kinds[0] == 1 and kinds[-1] == 4 and kinds.count(1) == kinds.count(4) == 1, kinds
    print(names[0], names[1], names[2] or "-", number, sums[2], sums[3])


def damage(path, out, how):
    data = open(path, "rb").read()
    parts = [data[:16]] + [data[at:end] for at, end in records(data)]
    middle = len(parts) // 2
    if how == "cut":
        parts = parts[:middle]
    elif how == "half":
        parts = parts[:middle] + [parts[middle][: len(parts[middle]) // 2]]
    elif how == "flip":
        wrong = bytearray(parts[middle])
        wrong[-1] ^= 1
        parts[middle] = bytes(wrong)
    elif how == "swap":
        parts[middle], parts[middle + 1] = parts[middle + 1], parts[middle]
    elif how == "drop":
        del parts[middle]
    elif how == "twice":
        parts.insert(middle, parts[middle])
    elif how == "behind":
        parts.append(b"more")
    else:
        sys.exit("how?")
    with open(out, "wb") as file:
        file.write(b"".join(parts))


def pass_on(most):
    while most > 0:
        piece = sys.stdin.buffer.read1(min(most, 65536))
        if not piece:
            return
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        most -= len(piece)


def hold(file, *amounts):
    with open(file + ".pid", "w") as out:
        out.write(str(os.getpid()))
    for number, amount in enumerate(amounts, 1):
        pass_on(int(amount))
        open("%s.held%d" % (file, number), "w").close()
        while not os.path.exists("%s.%d" % (file, number)):
            time.sleep(0.05)
    pass_on(1 << 60)


if sys.argv[1] == "check":
    check(sys.argv[2])
elif sys.argv[1] == "damage":
    damage(*sys.argv[2:5])
else:
    hold(*sys.argv[2:])

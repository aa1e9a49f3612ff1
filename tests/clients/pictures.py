#!/usr/bin/env python3
"""Compares pictures of a page by cells, so that the smoothing of letters does not count.

    pictures.py reduce PICTURE.png SMALL.png    the mean color of each cell of 8 by 8 pixels
    pictures.py compare SMALL.png SMALL.png     the percentage of cells that differ; 1 above the limit
    pictures.py brightness SMALL.png            the mean of all colors, 0 to 255

Only the standard library is used: PNG of 8 bits without interlacing, as Chromium and poppler write it.
"""

import struct
import sys
import zlib

CELL = 8
# A cell whose color moved by less is the same: another smoothing of the same letters.
SAME = 24
LIMIT_PERCENT = 0.4


def unfilter(method, line, before, step):
    """Takes a line's prediction back, in place."""
    if method == 1:
        for x in range(step, len(line)):
            line[x] = (line[x] + line[x - step]) & 255
    elif method == 2:
        for x in range(len(line)):
            line[x] = (line[x] + before[x]) & 255
    elif method == 3:
        for x in range(len(line)):
            left = line[x - step] if x >= step else 0
            line[x] = (line[x] + (left + before[x]) // 2) & 255
    elif method == 4:
        for x in range(len(line)):
            a, b, c = (line[x - step], before[x], before[x - step]) if x >= step else (0, before[x], 0)
            p = a + b - c
            pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
            near = a if pa <= pb and pa <= pc else b if pb <= pc else c
            line[x] = (line[x] + near) & 255


def read(name):
    """Width and rows of RGB."""
    with open(name, "rb") as file:
        data = file.read()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += length + 12
    assert depth == 8 and not interlaced, f"{name}: a layout of PNG that is not read"
    step = {0: 1, 2: 3, 6: 4}[color]
    raw, before, rows = zlib.decompress(packed), bytes(width * step), []
    for y in range(height):
        start = y * (width * step + 1)
        line = bytearray(raw[start + 1 : start + 1 + width * step])
        unfilter(raw[start], line, before, step)
        before = line
        parts = [line[0::step]] * 3 if step == 1 else [line[part::step] for part in range(3)]
        rows.append(parts)
    return width, rows


def reduce(source, target):
    width, rows = read(source)
    lines = []
    for top in range(0, len(rows) - CELL + 1, CELL):
        line = bytearray(b"\0")
        for left in range(0, width - CELL + 1, CELL):
            for part in range(3):
                cells = (sum(row[part][left : left + CELL]) for row in rows[top : top + CELL])
                line.append(sum(cells) // (CELL * CELL))
        lines.append(bytes(line))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width // CELL, len(lines), 8, 2, 0, 0, 0)
    packed = zlib.compress(b"".join(lines), 9)
    with open(target, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def compare(golden, new):
    (width, before), (new_width, after) = read(golden), read(new)
    if (width, len(before)) != (new_width, len(after)):
        print(f"{width} by {len(before)} cells became {new_width} by {len(after)}")
        return 1
    changed = sum(
        max(abs(old[part][x] - row[part][x]) for part in range(3)) > SAME
        for old, row in zip(before, after)
        for x in range(width)
    )
    percent = changed / (width * len(before)) * 100
    print(f"{percent:.2f} % of the cells changed; {LIMIT_PERCENT} % are allowed")
    return percent > LIMIT_PERCENT


def brightness(name):
    width, rows = read(name)
    total = sum(sum(part) for row in rows for part in row)
    print(round(total / (width * len(rows) * 3)))
    return 0


if __name__ == "__main__":
    command, *names = sys.argv[1:]
    sys.exit({"reduce": reduce, "compare": compare, "brightness": brightness}[command](*names))

#!/usr/bin/env python3
"""Single blocks of 4 KiB scattered over a volume, each with its own number: written, or compared.

    scatter.py write SOCKET EXPORT COUNT [FIRST]    blocks FIRST to COUNT, then a flush
    scatter.py check SOCKET EXPORT COUNT STEP       each STEPth of them
"""
import sys

from ledger import FLUSH, READ, WRITE, Connection

DEPTH = 64
BLOCK = 4096


def place(number, blocks):
    return (number * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64) % blocks * BLOCK


def stamp(number):
    return number.to_bytes(8, "big") * (BLOCK // 8)


def run(link, numbers, kind):
    blocks, flying = link.size // BLOCK, 0

    def take():
        error, handle = link.reply()
        if error:
            sys.exit(f"block {handle}: error {error}")
        if kind == READ and link.take(BLOCK) != stamp(handle):
            sys.exit(f"block {handle}: not what was written")

    for number in numbers:
        data = stamp(number) if kind == WRITE else b""
        link.send(0, kind, number, place(number, blocks), BLOCK, data)
        flying += 1
        if flying == DEPTH:
            take()
            flying -= 1
    for _ in range(flying):
        take()


def main():
    verb, socket, export, count, *more = sys.argv[1:]
    link = Connection(socket, export)
    more = int(more[0]) if more else 0
    if verb == "write":
        run(link, range(more, int(count)), WRITE)
        link.send(0, FLUSH, 0, 0, 0)
        if link.reply()[0]:
            sys.exit("the flush failed")
    else:
        run(link, range(0, int(count), more), READ)


main()

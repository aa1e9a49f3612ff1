#!/usr/bin/env python3
"""Stands where libnbd's own test programs start `nbdkit -s`: what they say on standard input goes to a
Forebay server, and its answers come back. Two things are changed, both before the first request:
programs that name no export get a volume of the size that they asked nbdkit for, or of the next one above;
and only those that asked nbdkit for a minimum block size are told of Forebay's, since libnbd would not send
what is against it.

    relay.py SOCKET POOL NOTES ARGUMENT...      the arguments that nbdkit was given

POOL has volumes that are named by their size in bytes, RELAY_SIZES says which. NOTES gets one line for each
connection.
"""
import os
import re
import socket
import struct
import sys
import threading
import time

OPTION, ANSWER = b"IHAVEOPT", 0x3E889045565A9
INFO, GO, LIST_META_CONTEXT, SET_META_CONTEXT = 6, 7, 9, 10
ACK, INFO_REPLY, BLOCK_SIZE = 1, 3, 3
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
PIECE_BYTES = 1 << 16


def asked(arguments):
    """The size that nbdkit would have given its export, and the seconds for which it keeps answers."""
    size, delay = 0, 0
    for argument in arguments:
        found = re.fullmatch(r"(?:size=)?(\d+)([km]?)", argument, re.IGNORECASE)
        if found:
            size = int(found[1]) * UNITS[found[2].lower()]
        if argument.startswith("delay-read="):
            delay = int(argument.partition("=")[2])
    return size, delay


def take(source, count):
    """So many bytes of a file descriptor, fewer at its end."""
    parts = bytearray()
    while len(parts) < count:
        piece = os.read(source, count - len(parts))
        if not piece:
            break
        parts += piece
    return bytes(parts)


def give(target, data):
    view = memoryview(data)
    while view:
        view = view[os.write(target, view):]


def options(server, export):
    """Takes the program through its handshake; the first bytes of its first request, if there is one."""
    give(server, take(0, 4))
    while True:
        begin = take(0, 4)
        if begin != OPTION[:4]:
            return begin
        head = begin + take(0, 12)
        option, length = struct.unpack(">II", head[8:])
        data = take(0, length)
        if option in (INFO, GO, LIST_META_CONTEXT, SET_META_CONTEXT) and data[:4] == bytes(4):
            data = struct.pack(">I", len(export)) + export + data[4:]
        give(server, head[:8] + struct.pack(">II", option, len(data)) + data)


def answers(server, sized, delay, notes):
    """Brings the program what the server says, until it says nothing more; then all is over."""
    try:
        give(1, take(server, 18))
        going = True
        while going:
            head = take(server, 20)
            if len(head) < 20:
                return
            magic, option, kind, length = struct.unpack(">QIII", head)
            assert magic == ANSWER, "not an answer to an option: %r" % head
            data = take(server, length)
            print(option, kind, file=notes, flush=True)
            going = (option, kind) != (GO, ACK)
            if kind == INFO_REPLY and data[:2] == struct.pack(">H", BLOCK_SIZE) and not sized:
                continue
            give(1, head + data)
        while True:
            piece = os.read(server, PIECE_BYTES)
            if not piece:
                return
            # As nbdkit's filter: what is answered comes late. The server has done its part.
            time.sleep(delay)
            give(1, piece)
    except OSError:
        pass
    finally:
        os._exit(0)


def main():
    path, pool, notes, *arguments = sys.argv[1:]
    if "--version" in arguments:
        print("nbdkit, for all that the program asks")
        return
    size, delay = asked(arguments)
    sized = any(one.startswith("blocksize-minimum=") for one in arguments)
    fitting = min(one for one in map(int, os.environ["RELAY_SIZES"].split()) if one >= size)
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    server = link.fileno()
    with open(notes, "a") as out:
        threading.Thread(target=answers, args=(server, sized, delay, out), daemon=True).start()
        try:
            piece = options(server, b"%s/%d" % (pool.encode(), fitting))
            while piece:
                give(server, piece)
                piece = os.read(0, PIECE_BYTES)
            link.shutdown(socket.SHUT_WR)
        except OSError:
            # The server has closed it; what it said before is still on its way.
            pass
        # Whoever ends it first: the server, or the program by a signal.
        threading.Event().wait()


main()

"""The service manager's end of a notify socket: writes each message to a file, one a line.

    notified.py SOCKET FILE

It knows the protocol of sd_notify(3) alone, and no code of Forebay. A message with several
assignments becomes one line, with a space between them; the sender's process id comes first, as
the kernel tells it.
"""

import os
import socket
import struct
import sys

path, out = sys.argv[1:]
receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
receiver.bind("\0" + path[1:] if path.startswith("@") else path)
with open(out, "w", encoding="utf-8", buffering=1) as lines:
    while True:
        message, ancillary, _, _ = receiver.recvmsg(65536, 1024)
        pid = 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack("3i", data)[0]
        text = message.decode().strip().replace("\n", " ")
        lines.write(f"{pid} {text}\n")

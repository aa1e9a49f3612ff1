#!/usr/bin/env python3
"""A command on a terminal of 80 by 24, with keys that are hit when words have come.

    terminal.py [WAIT KEYS]... -- COMMAND...

WAIT is a pattern that the command must print before KEYS are sent (C-c: Ctrl-C, TERM: the signal). Prints all that
came, and then each screen that it made: a program sends what differs from the screen before, which may be the end of a
word. Ends with 1 when a pattern does not come, when the command's exit code is not 0, or when the terminal is not left
as it was: its mode, its cursor, and its page.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

LIMIT_SECONDS = 120


def main(words):
    end = words.index("--")
    steps = list(zip(words[:end:2], words[1:end:2]))
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(inner)
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(words[end + 1 :], stdin=inner, stdout=inner, stderr=inner, env=environment,
                             preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
    deadline = time.monotonic() + LIMIT_SECONDS
    said, seen = b"", 0
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    screens = []

    def read():
        nonlocal said
        came = os.read(outer, 65536)
        said += came
        stream.feed(came)
        text = "\n".join(line.rstrip() for line in screen.display)
        if text not in screens[-1:]:
            screens.append(text)

    def more():
        if select.select([outer], [], [], 0.1)[0]:
            read()
        if time.monotonic() > deadline:
            child.kill()
            sys.exit(f"too late; it said:\n{said.decode(errors='replace')}")

    for text, keys in steps:
        while not re.search(text, said[seen:].decode(errors="replace")):
            if child.poll() is not None and not select.select([outer], [], [], 0)[0]:
                sys.exit(f"it ended before {text!r}; it said:\n{said.decode(errors='replace')}")
            more()
        seen = len(said)
        if keys == "TERM":
            child.send_signal(signal.SIGTERM)
        else:
            os.write(outer, keys.replace("C-c", "\x03").encode())
    while child.poll() is None:
        more()
    while select.select([outer], [], [], 0)[0]:
        read()
    print(said.decode(errors="replace"), *screens, sep="\n")
    assert child.returncode == 0, f"exit code {child.returncode}"
    assert termios.tcgetattr(inner) == before, "the terminal's mode has changed"
    assert said.count(b"\x1b[?1049h") == said.count(b"\x1b[?1049l"), "the other page is left"
    assert said.rfind(b"\x1b[?25l") <= said.rfind(b"\x1b[?25h"), "the cursor is hidden"


if __name__ == "__main__":
    main(sys.argv[1:])

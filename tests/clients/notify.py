#!/usr/bin/env python3
"""Places that events are told to: a syslog socket and a webhook with TLS, which keep what they get.

    notify.py SOCKET SYSLOG CERT KEY PORTFILE POSTED    POSTED: a line for each document; the first one is refused
"""

import http.server
import os
import socket
import ssl
import sys
import threading


def main(socket_path, syslog, cert, key, port_file, posted):
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    daemon.bind(socket_path)

    def receive():
        while True:
            line = daemon.recv(65536)
            with open(syslog, "ab") as file:
                file.write(line + b"\n")

    threading.Thread(target=receive, daemon=True).start()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_first = not os.path.exists(posted)
            with open(posted, "ab") as file:
                if not is_first:
                    file.write(body + b"\n")
            self.send_response(503 if is_first else 204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with open(port_file, "w") as file:
        file.write(f"{server.server_port}\n")
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

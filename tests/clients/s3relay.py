#!/usr/bin/env python3
"""Stands between a pool and its gateway of S3, and does to requests what a file tells it to.

    s3relay.py PORT GATEWAY_PORT RULES

RULES is read before each request; each line is one rule, and a file that is not there has none:
    fail TEXT       requests for paths with TEXT are answered with 500
    slow SECONDS    each answer comes so much later
    full            objects are not stored: 507, as of a store without room
Requests and answers pass unchanged otherwise; the signature covers the Host header, which stays.
"""
import http.client
import http.server
import sys
import threading
import time

PORT, GATEWAY, RULES = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HOP = {"connection", "keep-alive", "transfer-encoding"}


def rules():
    try:
        with open(RULES) as file:
            return [line.split(None, 1) for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        return []


class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    links = threading.local()

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body):
        # Head and body go out together: two small packets would wait for each other.
        lines = ["HTTP/1.1 %d %s" % (status, self.responses.get(status, ("",))[0])]
        lines += ["%s: %s" % pair for pair in headers]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self.wfile.write(head + (b"" if self.command == "HEAD" else body))

    def refuse(self, status, code):
        body = b"<Error><Code>%s</Code></Error>" % code
        self.answer(status, [("Content-Length", len(body))], body)

    def relay(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        for rule, *more in rules():
            if rule == "fail" and more[0] in self.path:
                return self.refuse(500, b"InternalError")
            if rule == "full" and self.command == "PUT":
                return self.refuse(507, b"InsufficientStorage")
            if rule == "slow":
                time.sleep(float(more[0]))
        try:
            link = getattr(self.links, "link", None) or http.client.HTTPConnection("127.0.0.1", GATEWAY)
            self.links.link = link
            link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP:
                    link.putheader(name, value)
            link.endheaders(body)
            found = link.getresponse()
            content = found.read()
        except (OSError, http.client.HTTPException):
            # The gateway is away: the client sees its connection end.
            self.links.link = None
            self.close_connection = True
            return
        headers = [(name, value) for name, value in found.getheaders() if name.lower() not in HOP]
        if self.command != "HEAD" and not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", len(content)))
        self.answer(found.status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


Server(("127.0.0.1", PORT), Relay).serve_forever()

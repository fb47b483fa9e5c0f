"""An interpreter with data that waits to be asked, as a notebook's kernel, an agent's sandbox or a small service does.

    python3 interpreter.py SOCKET MEBIBYTES SEED

In: requests by HTTP on a Unix socket; the path is a number. Out: a line for each, `ok` if what was read is what was stored. A request reads the first tenth of the
data, as what a program always needs, and twenty pieces elsewhere. Must not: do anything unasked. No package beyond Python's own.
"""

import http.server
import random
import socketserver
import sys
import zlib

PIECES_AT_RANDOM = 20


class Server(socketserver.UnixStreamServer):
    request_queue_size = 64


def filled(mebibytes, seed):
    """Documents as a program keeps them that has read a log: lines, numbers, a dictionary each."""
    rng = random.Random(seed)
    agents = ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101", "curl/8.14.1", "python-requests/2.32.5", "kube-probe/1.34"]
    paths = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(4, 12))) for _ in range(200)]

    def line(number):
        path, agent = rng.choice(paths), rng.choice(agents)
        second = f"2026-11-{number % 28 + 1:02} 12:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}"
        return f"{second} INFO worker-{rng.randrange(8)} GET /api/v1/{path}/{rng.randrange(100_000)} 200 {rng.randrange(5000)} \"{agent}\""

    def document(number):
        body = "\n".join(line(number) for _ in range(20))
        return {"id": number, "body": body, "numbers": [rng.randrange(10_000) / 100 for _ in range(20)], "check": zlib.crc32(body.encode())}

    def size(made):
        return sys.getsizeof(made) + sum(map(sys.getsizeof, made.values())) + sum(map(sys.getsizeof, made["numbers"]))

    count = (mebibytes << 20) // size(document(0))
    return [document(number) for number in range(count)]


def main():
    socket, mebibytes, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    documents = filled(mebibytes, seed)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            rng = random.Random(self.path)
            read = documents[: len(documents) // 10] + rng.sample(documents, PIECES_AT_RANDOM)
            right = all(zlib.crc32(one["body"].encode()) == one["check"] for one in read)
            self.send_response(200 if right else 500)
            self.end_headers()
            self.wfile.write(f"{'ok' if right else 'wrong'} {sum(one['numbers'][0] for one in read):.3f}\n".encode())

        def log_message(self, *_):
            pass

    Server(socket, Handler).serve_forever()


if __name__ == "__main__":
    main()

"""Exit status 0 when the service in this container is ready, else 1; prints what it says of itself.

HTTP over a bare socket: Docker starts this every few seconds in every container, and importing urllib took twice the time.
"""

import json
import os
import socket
import sys

TIMEOUT_S = 3
REQUEST = b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n"


def readiness(port: int) -> tuple[bool, str]:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
            connection.sendall(REQUEST)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.split()[1] == b"200", json.loads(body)["detail"]
    except OSError as error:
        return False, f"no answer: {error}"
    except (IndexError, ValueError) as error:
        return False, f"no readable answer: {error}"


if __name__ == "__main__":
    ready, detail = readiness(int(os.environ["MARLAAS_HTTP_PORT"]))
    sys.stdout.write(f"{detail}\n")
    sys.exit(not ready)

"""Exit status 0 when the service in this container is ready, else 1; prints what it says of itself."""

import json
import os
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

TIMEOUT_S = 3


def readiness(url: str) -> tuple[bool, str]:
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            return True, json.load(answer)["detail"]
    except HTTPError as error:
        return False, json.load(error)["detail"]
    except OSError as error:
        return False, f"no answer: {error}"


if __name__ == "__main__":
    ready, detail = readiness(f"http://127.0.0.1:{os.environ['MARLAAS_HTTP_PORT']}/readyz")
    sys.stdout.write(f"{detail}\n")
    sys.exit(not ready)

"""`python -m env_svc.installed`: the names of the environments that are installed here, one a line. Needs no stack."""

import logging
import sys

import structlog

from env_svc.registry import list_environments


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    names = list_environments()
    sys.stdout.write("".join(f"{name}\n" for name in names))
    sys.exit(0 if names else 1)


if __name__ == "__main__":
    main()

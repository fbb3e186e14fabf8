"""`python -m scheduler_svc.tenant_access grant|revoke|list [TENANT]`: manages PostgreSQL roles that read one tenant's rows."""

import argparse
import sys

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from common.errors import Reject
from common.runtime.settings import read_or_exit
from scheduler_svc.base import roles
from scheduler_svc.settings import SchedulerSettings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.tenant_access", description="PostgreSQL's roles of tenants.")
    parser.add_argument("verb", choices=["grant", "revoke", "list"])
    parser.add_argument("tenant", nargs="?", default="", help="name of a tenant")
    options = parser.parse_args()
    if bool(options.tenant) == (options.verb == "list"):
        parser.error(f"{options.verb} takes {'no' if options.tenant else 'the name of a'} tenant")
    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    url = settings.database_owner_url or settings.database_url
    try:
        with create_engine(url, poolclass=NullPool).begin() as connection:
            text = _done(connection, options.verb, options.tenant)
    except Reject as error:
        sys.exit(f"{options.verb}: {error}")
    except OperationalError as error:
        sys.exit(f"{options.verb}: PostgreSQL does not answer, or refuses: {str(error.orig).strip().splitlines()[-1]}")
    sys.stdout.write(text)


def _done(connection: Connection, verb: str, tenant: str) -> str:
    if verb == "list":
        return "".join(f"{tenant}  {role}\n" for tenant, role in roles.of_tenants(connection)) or "no tenant has a role\n"
    if verb == "revoke":
        return f"revoked: {roles.revoke(connection, tenant)} of tenant {tenant} is gone, and its sessions ended\n"
    granted = roles.grant(connection, tenant)
    at = make_url(connection.engine.url)
    address = f"postgresql://{granted.role}@{at.host}:{at.port or 5432}/{at.database}"
    return f"tenant {tenant} reads its rows with: psql {address}\npassword, shown once; `grant` again makes another: {granted.password}\n"


if __name__ == "__main__":
    main()

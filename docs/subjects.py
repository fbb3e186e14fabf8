"""The page of subjects and permissions, made from `common/access`."""

from common import streams
from common.access.roles import JOBS_OF_ROLE, ROLES, Import, imports, role_permissions
from common.access.rows import Row, Use
from common.access.services import SERVICES, Deployment, table
from common.messages import OWN_FAMILY

OWN_QUEUES = (streams.queue("<pool>", "<accelerator>"),)
EXAMPLE = Deployment(("<pool>",), ("<family>", OWN_FAMILY), OWN_QUEUES, OWN_QUEUES)
USES: dict[Use, str] = {
    Use.PUBLISH: "publishes",
    Use.SUBSCRIBE: "hears",
    Use.CONSUME: "takes the messages of the consumers",
    Use.FOLLOW: "follows the streams",
    Use.READ: "reads single messages of the streams",
    Use.INSPECT: "inspects",
    Use.DECLARE: "declares the streams",
    Use.PURGE: "deletes messages of the streams",
    Use.RECREATE: "deletes and recreates the streams",
}


def page() -> str:
    streams_table = [
        f"| `{one.name}` | {' '.join(f'`{subject}`' for subject in one.subjects)} | {one.retention} |" for one in streams.STREAMS
    ]
    lines = [
        "# Subjects, streams and who may use them",
        "",
        "Made from `common/streams/` and `common/access` by `python -m docs.generate`. In a deployment with keys NATS refuses all",
        "that is not listed here.",
        "",
        "| stream | subjects | retention |",
        "|---|---|---|",
        *streams_table,
        "",
        f"Buckets: {', '.join(f'`{each.name}`' for each in streams.BUCKETS)}; blobs: `{streams.BLOBS_BUCKET}`. Behind each is a stream, "
        "`KV_<bucket>` or `OBJ_<store>`.",
        "",
        "## Services",
        "",
        "One user each, in one account, the only one with JetStream. A service hears its own replies only, on `_INBOX.<service>.>`.",
    ]
    for service, rows in table(EXAMPLE).items():
        summary = (SERVICES[service].__doc__ or "").splitlines()
        lines += ["", f"### {service}", *([f"\n{summary[0]}"] if summary else []), "", *_uses(rows)]
    lines += ["", "## Tenants", "", "An account each, without JetStream, that takes from the services' account:", ""]
    lines += [f"- `{each.subject}` ({each.kind}){_exported(each)}" for each in imports("<tenant>")]
    lines += ["", f"The account `admin` takes the same of every tenant: {', '.join(f'`{each.subject}`' for each in imports('*'))}.", ""]
    lines += ["| role | jobs | asks | hears |", "|---|---|---|---|"]
    for role in ROLES:
        tenant = "*" if role == "admin" else "<tenant>"
        found = role_permissions(role, tenant, "<key>")
        asks = ", ".join(subject.rpartition(".")[2] for subject in found.publish if subject.startswith("ask."))
        lines.append(f"| {role} | {', '.join(JOBS_OF_ROLE[role]) or 'none'} | {asks} | `{found.subscribe[0]}` |")
    lines += ["", "A key hears its own replies only, on `_INBOX.<key>.>`."]
    lines += ["", "A job's subject is `jobs.<verb>.<tenant>`, or `jobs.<verb>.<tenant>.<key>`, which NATS takes from that key only.", ""]
    return "\n".join(lines)


def _uses(rows: list[Row]) -> list[str]:
    found = {use: list(dict.fromkeys(row.target for row in rows if row.use is use)) for use in Use}
    return [f"- {USES[use]} {', '.join(f'`{target}`' for target in targets)}" for use, targets in found.items() if targets]


def _exported(taken: Import) -> str:
    return "" if taken.exported == taken.subject else f", there `{taken.exported}`: stored in `{streams.own_jobs('<tenant>').name}`"


def _code(text: str) -> str:
    return f"`{text}`"

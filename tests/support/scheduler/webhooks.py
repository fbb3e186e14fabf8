"""Rules of webhooks that permit this machine's addresses."""

from scheduler_svc.tenancy.webhooks.addresses import Policy, WebhookRules, parse_networks

RULES = WebhookRules(Policy(parse_networks("127.0.0.0/8"), http=True), b"a key of the deployment")

"""What a tenant has beside tasks, over HTTP."""

from marlaas.over_http.door import HttpDoor
from marlaas.over_http.tenancy.aliases import HttpAliases
from marlaas.over_http.tenancy.files import HttpFiles
from marlaas.over_http.tenancy.webhooks import HttpWebhooks
from marlaas.owned import Owned


def owned_by(door: HttpDoor) -> Owned:
    """What the tenant of the door has."""
    return Owned(HttpAliases(door), HttpFiles(door), HttpWebhooks(door))

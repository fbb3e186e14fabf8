"""Tenants of a deployment without keys that get accounts."""

from common.messages import TenantAccess
from marlaas.tenancy.existing import names_for_accounts


def test_deleted_tenants_and_names_that_no_account_may_have_are_left_out() -> None:
    def tenant(name: str | None, *, deleted: bool = False) -> TenantAccess:
        return TenantAccess(
            tenant=name, account=None, suspended=False, keys=[], deleted=deleted, max_connections=64, max_message_bytes=2**20
        )

    found = [tenant(None), tenant("acme"), tenant("gone", deleted=True), tenant("Old_Name"), tenant("admin"), tenant("globex")]
    assert names_for_accounts(found) == ["acme", "globex"]

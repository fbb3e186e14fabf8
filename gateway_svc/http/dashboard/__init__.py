"""The dashboard's routes, below `/ui`.

visitor.py     the visitor of a page: a session, or a server without keys; pages and their headers; forms and CSRF
pages.py       pages to read, the assets and data that they load, and notifications that their data changed
actions.py     forms that change something
tenancy.py     a tenant's files, webhooks and keys
playground.py  one prompt to several models
login.py       sessions
routes.py      the family of all these routes
"""

from gateway_svc.http.dashboard.routes import COLUMNS_FAMILY as COLUMNS_FAMILY
from gateway_svc.http.dashboard.routes import FAMILY as FAMILY

"""The dashboard's routes, below `/ui`.

visitor.py     who looks: a session, or a server without keys; pages and their headers; forms and CSRF
pages.py       pages to read, what they load, and what tells them that their data changed
actions.py     forms that change something
tenancy.py     what a tenant has beside tasks: files, webhooks, keys
playground.py  one prompt to several models
login.py       sessions
routes.py      the family of all of them
"""

from gateway_svc.http.dashboard.routes import COLUMNS_FAMILY as COLUMNS_FAMILY
from gateway_svc.http.dashboard.routes import FAMILY as FAMILY

"""The dashboard's routes, below `/ui`.

route.py     PageRoute: headers of every page, and errors as pages
visitor.py   who looks: a session, or a server without keys; CSRF
bodies.py    forms as browsers send them
pages.py     pages to read
actions.py   forms that change something
tenancy.py   what a tenant has beside tasks: files, webhooks, keys
playground.py  one prompt to several models
login.py     sessions
live.py      what tells a page that its data changed
files.py     scripts, styles and downloads
"""

from gateway_svc.http.dashboard.routes import COLUMNS_FAMILY as COLUMNS_FAMILY
from gateway_svc.http.dashboard.routes import FAMILY as FAMILY

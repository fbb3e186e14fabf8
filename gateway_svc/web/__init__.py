"""The dashboard's pages without HTTP: their content and rendering. `gateway_svc.http.dashboard` serves them.

session.py       encrypted sessions of browsers, and CSRF tokens
text.py          hostile text made visible; numbers, times and sizes formatted for people
templates.py     Jinja2 with the pages' filters; scripts and styles, named by a digest of their content
reading.py       questions of pages to the scheduler
playground.py    a conversation with versions, as a form and as code, and their answers
forms.py         forms from the task file's fields, and task files from forms
views/           view models: pure functions from the scheduler's answers to the values of a template
templates/       HTML
static/          our own scripts and styles
vendor/          third-party ones; fetch_vendor.py fetches and checks them
"""

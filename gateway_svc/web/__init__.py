"""The dashboard's pages without HTTP: what they show, and how it is written. `gateway_svc.http.dashboard` serves them.

session.py       sessions of browsers, sealed, and CSRF tokens
text.py          hostile text made visible; numbers, times and sizes as people read them
templates.py     Jinja2, with the filters of the pages; scripts and styles, named by their content
reading.py       what pages ask the scheduler
playground.py    a conversation with versions, as a form and as code, and their answers
forms.py         forms from the task file's fields, and task files from forms
views/           view models: pure functions from the scheduler's answers to what a template shows
templates/       HTML
static/          scripts and styles of our own
vendor/          those of others; fetch_vendor.py fetches and checks them
"""

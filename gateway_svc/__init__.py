"""The gateway: HTTP in, jobs and asks out. It keeps nothing that may not be lost.

Consumes  HTTP requests with a key; `events.<tenant>.<task>`
Produces  `jobs.*.<tenant>` and `ask.<tenant>.<verb>`, each as the key that the request brought
Owns      nothing

Layout: __main__ and settings; service (starts, drains); access, keys and connections (who sends a request); problems (what a client is
told), samples, strict_json, task_bodies, downloads; readiness, drain; http/ (the application, which alone knows fastapi,
starlette and uvicorn); web/ (the dashboard's pages).
"""

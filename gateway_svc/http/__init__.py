"""The HTTP application. Only this package imports fastapi, starlette and uvicorn.

application.py   the application, of families of routes
family.py        Family: routes with one shape of errors · openai_family.py those of OpenAI's
connected.py     whether a client is still there
gateway.py       Gateway: what all routes have in common; the caller of a request
guard.py         what holds for every request: its id, its limits, the drain
strict.py        bodies as strict JSON
errors.py        problems as answers
description.py   the interface as OpenAPI
event_stream.py  server-sent events
download.py      files with Range and ETag
forwarded.py     headers of named proxies
server.py        uvicorn in the service's loop
routes/          the families
dashboard/       pages for browsers
"""

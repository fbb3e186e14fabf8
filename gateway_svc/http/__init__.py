"""The HTTP application. Only this package imports fastapi, starlette and uvicorn.

application.py    the application, of families of routes; its description as OpenAPI; headers of named proxies
gateway.py        Gateway: what all routes have in common, the caller of a request, the drain
guard.py          what holds for every request: its id, its limits, the drain
strict.py         bodies as strict JSON
errors.py         problems as answers; Family: routes that answer them in one shape
openai_family.py  families of OpenAI's routes
event_stream.py   server-sent events, and work that ends when the client goes
download.py       parts of a blob, with Range and ETag
server.py         uvicorn in the service's loop
routes/           the families
dashboard/        pages for browsers
"""

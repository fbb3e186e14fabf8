"""The HTTP application. Only this package imports fastapi, starlette and uvicorn.

application.py    the application, made of families of routes; its OpenAPI document; headers of trusted proxies
gateway.py        Gateway: shared by all routes; the caller of a request; the drain
guard.py          checks and limits for every request: its id, its body, its sender's pace, the drain
strict.py         parameters, and bodies as strict JSON
errors.py         problems as answers; Family: routes that render problems in one shape
openai_family.py  families of OpenAI's routes
event_stream.py   server-sent events, and work that ends when the client disconnects
download.py       parts of a blob, with Range and ETag
server.py         uvicorn in the service's event loop
routes/           the families
dashboard/        pages for browsers
"""

"""The gateway: HTTP in, jobs and asks out. It stores nothing that must survive a restart.

Consumes  HTTP requests with a key; `events.<tenant>.<task>`
Produces  `jobs.*.<tenant>` and `ask.<tenant>.<verb>`, each sent with the key of the HTTP request
Owns      nothing
Layout    http/: the application, the only package that imports fastapi, starlette and uvicorn · web/: the dashboard's pages · openai/:
  OpenAI's requests and answers · serving/: requests to versions · limits/: of requests and tokens · access: authentication ·
  samples: attempts of a step · problems: errors as shown to clients · bodies: strict JSON and task files ·
  service, settings
"""

"""The gateway: HTTP in, jobs and asks out. It stores nothing that must survive a restart.

Consumes  HTTP requests with a key; `events.<tenant>.<task>`; `replies.<gateway>`; the key-value buckets `http-keys`, `aliases`,
  `replicas` and `history`
Produces  `jobs.*.<tenant>` and `ask.<tenant>.<verb>`, each sent with the key of the HTTP request; with its own key `prompts.serve`,
  `cancels`, `served`, `ask.*.terms`, `ask.*.pools` and the bucket `http-use`
Owns      nothing
Layout    http/: the application, the only package that imports fastapi, starlette and uvicorn · web/: the dashboard's pages · openai/:
  OpenAI's requests and answers · serving/: requests to versions · limits/: of requests and tokens · access: authentication ·
  samples: attempts of a step · problems: errors as shown to clients · bodies: strict JSON and task files ·
  service, settings
"""

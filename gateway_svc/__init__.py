"""The gateway: HTTP in, jobs and asks out. It keeps nothing that may not be lost.

Consumes  HTTP requests with a key; `events.<tenant>.<task>`
Produces  `jobs.*.<tenant>` and `ask.<tenant>.<verb>`, each as the key that the request brought
Owns      nothing

Layout    http/: the application, which alone imports fastapi, starlette and uvicorn · web/: the dashboard's pages · openai/: OpenAI's
          requests and answers · serving/: requests to versions · limits/: of requests and tokens · access: who sends a request ·
          samples: attempts of a step · problems: what a client is answered when something fails · bodies: strict JSON and task files ·
          service, settings
"""

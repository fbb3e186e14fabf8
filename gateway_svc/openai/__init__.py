"""OpenAI's requests and answers, converted to and from messages. No HTTP here; the routes are in `http/routes`.

errors.py       errors in OpenAI's shape
parsing.py      a body as a request in which every field is honoured, harmless or refused
models.py       names of models, and how a caller's name is resolved
files.py        /v1/files: uploaded rows, and the results of jobs
sampling/       shared by the inference APIs: settings, choices, usage
chat/           /v1/chat/completions
text.py         /v1/completions
responses/      /v1/responses
jobs/           /v1/fine_tuning/jobs: tasks, as jobs
"""

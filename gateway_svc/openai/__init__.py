"""OpenAI's requests and answers, made from and into messages. No HTTP here; the routes are in `http/routes`.

errors.py       errors in OpenAI's shape
parsing.py      a body as a request in which no field is ignored: honoured, harmless or refused
models.py       names of models, and what one means now, for one caller
files.py        /v1/files: uploaded rows, and the results of jobs
sampling/       what the APIs of inference have in common: settings, choices, usage
chat/           /v1/chat/completions
text.py         /v1/completions
responses/      /v1/responses
jobs/           /v1/fine_tuning/jobs: tasks, as jobs
"""

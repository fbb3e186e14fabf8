"""OpenAI's requests and answers, made from and into messages. No HTTP here; the routes are in `http/routes`.

errors.py       errors in OpenAI's shape
fields.py       fields that are harmless, and those that are refused, as data
parsing.py      a body as a request in which no field is ignored
model_names.py  names of models
models.py       what a name means now, for one caller · base_models.py names of pools that no alias has
graders.py      graders of fine-tuning jobs · result_ids.py ids of result files
files/          /v1/files
sampling/       what the APIs of inference have in common: settings, choices, usage
chat/           /v1/chat/completions
text/           /v1/completions
responses/      /v1/responses
jobs/           /v1/fine_tuning/jobs: tasks, as jobs
"""

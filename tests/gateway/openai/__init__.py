"""OpenAI's API, by its own client.

routes of inference                               test_inference.py
answers from deltas                               test_answers.py
fields: honoured, harmless or refused             test_parsing.py
types of answers, strictly                        test_strict_types.py
failures, and clients that leave                  test_failures.py
replicas through NATS                             test_replicas.py
refusals beyond latency goals                     test_goals.py
fine-tuning jobs                                  test_fine_tuning.py
files, and jobs on them                           test_files.py
a job on a file, with a real environment replica  test_file_job.py
result files of jobs                              test_results.py
rights of each role                               test_roles.py
the example of docs/openai.md                     test_page.py

Helpers: clients.py, fine_tuning.py (jobs), routes.py (routes with their roles and bodies).
"""

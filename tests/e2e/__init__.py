"""Whole stacks: real NATS, PostgreSQL, engine and training.

three tenants' tasks, with nothing left out               test_whole_loop.py
an uploaded file, by OpenAI's client, to a better model   test_file_job.py
every recipe, in two steps                                test_recipes.py
commands of docs/environments.md: a tenant's environment  test_own_environment.py
commands of docs/tenancy.md: keys to the first bill       test_first_bill.py
content of a deleted tenant                               test_deleted_content.py
services whose servers start late or vanish               test_unavailable_servers.py
new signing keys for a running stack                      test_init.py
sampler and trainer take turns on one core                test_executors.py
a task's homes on two cores                               test_homes.py
"""

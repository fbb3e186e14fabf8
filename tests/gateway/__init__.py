"""The gateway before a real scheduler, NATS and PostgreSQL.

Requests of every kind:
  bodies, keys, limits, names, headers           test_requests.py
  refusals that ask nothing of NATS              test_entrance.py
  unknown parameters and routes                  test_unknown_names.py
  JSON that is cheap to send and costly to read  test_strict_json.py
  the same through a real server                 test_hostile_bodies.py
  requests made from the OpenAPI document        test_fuzz.py
  curl lines of docs/http.md                     test_page.py

Keys and limits:
  HTTP keys, from the command to the request     test_http_keys.py
  connections of HTTP keys                       test_key_connections.py
  connections, without servers                   test_connections.py
  limits over several gateways                   test_limits.py
  answers about limits and budgets               test_limited_requests.py
  the sliding minute                             test_window.py
  turns among senders                            test_pacing.py

Resources:
  submission, state and control of tasks         test_tasks.py
  lists of tasks                                 test_listing.py
  events as a stream                             test_events.py
  samples with their texts                       test_samples.py
  downloads of adapters                          test_downloads.py
  aliases                                        test_aliases.py
  names of base models                           test_base_models.py
  asks and jobs                                  test_door.py
  what the SDK needs                             test_clients_ids.py

Processes:
  the gateway's start and end                    test_process.py
  nginx and Caddy before it                      test_proxies.py

Folders:
  pages for browsers                             dashboard/
  OpenAI's API                                   openai/

Helpers: behind_keys.py (a gateway with keys and two tasks), event_streams.py, conversations.py, fuzzing.py (schemathesis), work.py (counts
work).
"""

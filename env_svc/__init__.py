"""Environment service: opens episodes, plays turns, grades.

Consumes  prompts.check.<family>.*, prompts.open.<family>.*, trajectories.turn.<family>.*, prompts.package.own.*.*;
  blobs of packages and files; the key-value buckets `tasks` and `pools`
Produces  trajectories.checked.*, prompts.sample.*, trajectories.scored.*, trajectories.package.*.*
Owns      environments, and worker processes for those that compute. Nothing durable: an episode's state travels with
  its messages, so any replica plays the next turn.
Layout    replica.py builds a replica; service.py handles messages, with execution/ (where calls run), hosted/ (environments in their own
  processes), packages/ (environments of tenants), tools/ and sandboxes/; contract.py is what authors import; builtin/ and adapters/ are
  environments; check.py tests an environment; files/ plays rows of tenants; process_folder.py manages a process's folder on disk;
  registry.py finds environments by name and lists installed ones; allowed.py decides which names a tenant may
  use; options.py checks options; datasets.py reads data sets; replies.py builds the answering messages; completion.py yields
  results of concurrent calls; errors.py, settings.py
"""

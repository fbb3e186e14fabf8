"""Environment service: opens episodes, plays turns, grades.

Consumes  prompts.check.<family>.*, prompts.open.<family>.*, trajectories.turn.<family>.*, prompts.package.own.*.*, blobs of packages
Produces  trajectories.checked.*, prompts.sample.*, trajectories.scored.*, trajectories.package.*.*
Owns      environments, and the worker processes of those that compute. Nothing durable: an episode's state travels with
          its messages, so any replica plays the next turn.
Layout    replica.py puts a replica together; service.py handles messages, with execution/ (where calls run), hosted/ (processes of
          their own), packages/ (those of tenants), tools/ and sandboxes/; contract.py is what authors import; builtin/ and adapters/ are
          environments; check.py examines one; files/ plays rows of tenants; process_folder.py has what a process keeps on the disk;
          registry.py finds environments and tools by name, and lists what is installed, allowed.py among what a tenant may
          name; options.py checks options; datasets.py reads data sets; replies.py has the messages that answer; completion.py single
          results of many calls; errors.py, settings.py
"""

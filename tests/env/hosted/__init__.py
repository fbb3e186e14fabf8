"""Environments in processes of their own.

what tasks give and get                    test_playing.py
processes: shared, restarted, ended        test_processes.py
outcomes are held to the contract          test_outcomes.py
attempts to escape                         test_escapes.py
what the sandbox grants, bounds and shows  test_confinement.py
control groups                             test_cgroups.py
the file of hosted environments            test_config.py

Helpers: playing.py (an executor with hosts), guest.py (environments in the other interpreter), attempts.py (escapes), targets.py (their
aims).
"""

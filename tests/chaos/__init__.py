"""Chaos: the real stack, four tasks, and a seeded series of faults. Every task must finish, the doctor must find no
violation, and the replay of every step must give equal digests.

launch.py           starts a service, with an armed crash point if one was requested
target.py           a running stack whose connections, clocks and disk can fail
chats.py            chats beside the tasks, in a pool with latency goals
message_faults.py network_faults.py process_faults.py    injection of each fault; faults.py lists the kinds
harness.py          the run: tasks, faults one after the other, recovery times, the doctor's verdict
report.py           recovery times by kind of fault, for the terminal and as a file
replay.py           the replay of every step

a run of minutes       test_chaos.py
reports of recoveries  test_report.py
"""

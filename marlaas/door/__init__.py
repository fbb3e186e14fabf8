"""The SDK's one way in: jobs are published, everything else is asked for, and events are listened to.

A client needs no JetStream: it publishes `jobs.*.<tenant>` and `ask.<tenant>.*`, and hears `events.<tenant>.>` and its inbox.

asking.py     Door: asks, with retries and clear errors
following.py  events without loss or repetition
answers.py    answers to jobs, which are events
billing.py    invoices, prices and budgets
download.py   adapters, and what is stored
"""

"""A client's way in: jobs are published, everything else is asked for, and events are listened to.

The SDK, the command line and the gateway have it in common. It needs no JetStream: it publishes `jobs.*.<tenant>` and `ask.<tenant>.*`, and
hears `events.<tenant>.>` and its inbox.

protocol.py    AnyDoor: what a client needs of its way in, NATS or HTTP; questions whose answers come a page at a time
asking.py      Door: asks, with retries and clear errors; answers to jobs, which are events
deployment.py  what the deployment offers, and its shared accelerators
errors.py      what a client is told, and checks before anything is sent
training/      tasks
tenancy/       tenants
"""

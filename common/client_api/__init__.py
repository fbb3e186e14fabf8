"""A client's operations: it publishes jobs, asks questions, and listens to events.

Shared by the SDK, the command line and the gateway. It needs no JetStream: it publishes `jobs.*.<tenant>` and `ask.<tenant>.*`, and
subscribes to `events.<tenant>.>` and its inbox.

protocol.py    AnyDoor: the interface that NATS and HTTP clients implement; questions with paginated answers
asking.py      Door: asks over NATS, with retries and clear errors; waits for events that answer jobs
deployment.py  the deployment's pools, replicas and environments, and its shared accelerators
errors.py      errors of the SDK, and checks before a request is sent
training/      tasks
tenancy/       tenants
"""

"""`python -m scheduler_svc.accept`: the name under which operators know `reconcile`."""

from scheduler_svc.reconcile import main

if __name__ == "__main__":
    main()

"""The containers: built, started, killed, scaled, backed up. `make test-compose`."""

"""What docker-compose.yml runs before its services."""

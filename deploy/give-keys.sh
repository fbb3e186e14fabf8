#!/usr/bin/env bash
# Keys and passwords for a deployment that was made without: deploy/give-keys.sh, once deploy/passwords is out of COMPOSE_FILE.
# Running tasks continue. Interrupted, it is completed by the same command. First: deploy/backup.sh, which is the way back.
set -euo pipefail
cd "$(dirname "$0")/.."
compose() { ${COMPOSE:-docker compose} "$@"; }
if [[ $(compose config) == *--passwords* ]]; then
  echo "give-keys: COMPOSE_FILE has deploy/passwords/compose.yml; remove it from .env first" >&2
  exit 1
fi
compose stop
compose run --rm -T --no-deps init --from-existing
compose up -d --no-deps postgres
until compose exec -T postgres pg_isready -q -h 127.0.0.1 -U marlaas -d marlaas < /dev/null; do sleep 1; done
compose exec -T postgres psql -U marlaas -q -v ON_ERROR_STOP=1 -f /docker-entrypoint-initdb.d/password.sql < /dev/null
compose up -d
compose logs accounts

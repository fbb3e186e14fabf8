#!/usr/bin/env bash
# What deploy/backup.sh saved, into empty volumes: deploy/restore.sh FOLDER, then `docker compose up -d`.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "${1:?usage: deploy/restore.sh FOLDER}")
compose() { ${COMPOSE:-docker compose} "$@"; }
# The keys first: streams belong to the account of theirs, and init makes others where there are none.
if ! compose run --rm -T --no-deps --entrypoint sh init -c 'test ! -e /volumes/keys/operator.seed' < /dev/null; then
  echo "restore: there are keys already; remove them with 'docker compose down --volumes' if they are not needed" >&2
  exit 1
fi
compose run --rm -T --no-deps --entrypoint tar init -C /volumes/keys -xf - < "$folder/keys.tar"
compose up -d postgres
until compose exec -T postgres pg_isready -q -h 127.0.0.1 -U marlaas -d marlaas < /dev/null; do sleep 1; done
if [[ $(compose exec -T postgres psql -U marlaas -Atc "SELECT to_regclass('tasks') IS NULL" < /dev/null) != t* ]]; then
  echo "restore: there is a database already; remove it with 'docker compose down --volumes' if it is not needed" >&2
  exit 1
fi
compose run --rm -T --no-deps --entrypoint tar nats -C /data -xf - < "$folder/nats.tar"
# Owners, rights and policies in the dump name roles, which belong to the server; `migrate` gives them their passwords.
for role in marlaas_owner marlaas_app marlaas_reader marlaas_tenants; do
  compose exec -T postgres psql -U marlaas -q -c "DO \$\$ BEGIN CREATE ROLE $role; EXCEPTION WHEN duplicate_object THEN NULL; END \$\$" < /dev/null
done
compose exec -T postgres pg_restore -U marlaas -d marlaas --exit-on-error < "$folder/postgres.dump"
# Whoever follows a task has seen events of after the backup. Those that come now get numbers above any of them: an event under a number
# that was seen would be dropped as one that came twice.
compose exec -T postgres psql -U marlaas -d marlaas -q -v ON_ERROR_STOP=1 -c 'UPDATE event_numbers SET last = last + 1000000' < /dev/null
echo "restored; next: docker compose up -d"

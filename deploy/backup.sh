#!/usr/bin/env bash
# Both stores as of one moment, and the signing keys: deploy/backup.sh FOLDER. Services pause for it and go on afterwards, also where it
# fails; nothing is lost.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: deploy/backup.sh FOLDER}
compose() { ${COMPOSE:-docker compose} "$@"; }
umask 077 # who has the keys can make any key
mkdir -p "$folder"
restarted=
services=$(compose ps --services | sed -nE '/^(scheduler|gateway|env|trainer|rollout)/p')

restart() { compose start nats && { [[ ! $services ]] || compose start $services; } && restarted=1; }
end() {
  local status=$?
  # Whatever comes, the services run again first: a second Ctrl-C, or a terminal that takes no more messages.
  trap '' INT TERM HUP PIPE
  set +e
  [[ $restarted ]] || restart
  if ((status)); then
    rm -f "$folder/postgres.dump.part" "$folder/nats.tar.part" "$folder/keys.tar.part"
    echo "backup: it failed, for the reason above; $folder holds no backup of this moment" >&2
  fi
  if [[ ! $restarted ]]; then
    echo "backup: not everything that was stopped could be restarted; next: docker compose up -d" >&2
    status=1
  fi
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

not_whole() {
  echo "backup: ${1%.part} could not be read back whole; next: the same command again" >&2
  exit 1
}
# To tar itself an archive that ends with a whole file is whole; its real end is two blocks of zeros. Files that end so hide a cut there.
check_tar() { [[ $(tail -c 1024 "$1" | tr -d '\0' | wc -c) -eq 0 ]] && tar -tf "$1" > /dev/null || not_whole "$1"; }

# Whoever writes is stopped first: a database of one moment and a stream of another would not fit.
if [[ $services ]]; then compose stop $services; else echo "backup: no service runs; the stores are saved as they are"; fi
compose exec -T postgres pg_dump -U marlaas --format=custom marlaas > "$folder/postgres.dump.part"
compose stop nats
compose run --rm -T --no-deps --entrypoint tar nats -C /data -cf - . > "$folder/nats.tar.part"
compose run --rm -T --no-deps --entrypoint tar init -C /volumes/keys -cf - . > "$folder/keys.tar.part"
restart || true # `end` tries once more and reports it; the backup is good all the same
# Under their names only once all are whole: output may be lost of a command that succeeds.
compose exec -T postgres pg_restore -f /dev/null < "$folder/postgres.dump.part" || not_whole "$folder/postgres.dump.part"
check_tar "$folder/nats.tar.part"
check_tar "$folder/keys.tar.part"
mv "$folder/keys.tar.part" "$folder/keys.tar"
mv "$folder/nats.tar.part" "$folder/nats.tar"
mv "$folder/postgres.dump.part" "$folder/postgres.dump"
echo "backed up: $(du -h "$folder/postgres.dump" "$folder/nats.tar" "$folder/keys.tar" | tr '\n\t' '  ')"

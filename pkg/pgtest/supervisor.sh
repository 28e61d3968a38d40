# Keeps one Postgres running for as long as its owner lives.
#
#   supervisor PG_CTL DIR MODE TEMPORARY
#
# The owner holds the other end of stdin. A line names a shutdown mode and asks for a restart; the end of
# input means that the owner has stopped, or was killed, and that the server has to end in MODE. Every
# start is answered on stdout with "up" or "down". A directory that is TEMPORARY=yes ends with the server.
#
# A terminal's signals are the owner's affair.
trap '' HUP INT TERM

pg_ctl=$1 dir=$2 mode=$3 temporary=$4

ctl() {
  "$pg_ctl" --silent --wait --timeout=60 --pgdata="$dir/data" --log="$dir/postgres.log" "$@" \
    </dev/null >>"$dir/pg_ctl.log" 2>&1
}
answer() {
  if "$@"; then echo up; else echo down; fi
}

answer ctl start
while read -r restart; do
  # Not pg_ctl's restart, which does not start a server that never came up.
  ctl stop --mode="$restart"
  answer ctl start
done
ctl stop --mode="$mode"
[ "$temporary" = no ] || rm -rf "$dir"

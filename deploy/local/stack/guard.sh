# Ends processes whose owner has ended, however that came about.
#
# The owner holds the other end of stdin. It writes "+PID" for a process that it has started and "-PID" for one that
# has ended; the end of input means that the owner is gone, and then whatever is left has to go too: the polite way
# first, and a stopped process is woken to hear of it.
#
# A terminal's signals are the owner's affair.
trap '' HUP INT TERM

pids=
while read -r line; do
  case $line in
  +*) pids="$pids ${line#+}" ;;
  -*)
    left=
    for pid in $pids; do
      [ "$pid" = "${line#-}" ] || left="$left $pid"
    done
    pids=$left
    ;;
  esac
done

each() {
  for pid in $pids; do
    kill "$1" "$pid" 2>/dev/null
  done
}
alive() {
  for pid in $pids; do
    kill -0 "$pid" 2>/dev/null && return
  done
  return 1
}

each -TERM
each -CONT
seconds=0
while alive && [ $seconds -lt 10 ]; do
  sleep 1
  seconds=$((seconds + 1))
done
each -KILL
